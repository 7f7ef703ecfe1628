"""Words of the page beside its figures."""

import re

from attn_spec.reports.proof.teeth import page

from tests.reports.proof.teeth.test_page import LSE, OUTPUT, PEER, WEIGHTS, made


def test_columns_and_sizes_are_told_without_hovering():
    html = page.html(made())
    names = re.findall(r"<li>([\w. ]+)</li>", html[html.index("The columns, from the left") :])

    assert names[:4] == [OUTPUT, LSE, WEIGHTS, PEER]
    assert "<td>The scale is too large by a factor of 1 + size.</td>" in html
