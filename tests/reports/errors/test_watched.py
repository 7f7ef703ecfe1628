"""The numeric error report shows what a watch saw. A file that is no report of a watch is told."""

import dataclasses
import re

import pytest
from attn_spec.reports.errors.command import write_report

from attn_spec.watching.tally import SCHEMA, Refuted, Tally, TallyError, document, load

SEEN = Tally("library:attention", calls=7, kinds=2, judged=4, judged_backward=1, ratio=0.5, seconds=1.0, elapsed=9.0)
SEEN.left["the share of 20 % of the time was spent"] = 3
SEEN.left_backward["q, k or v are one <tensor>"] = 1
SEEN.refuted.append(Refuted("this is not the attention of these tensors", "forward", case="0123abcd"))
PAGE = {"kernels": ["numpy_naive"], "dtypes": ["float32"], "device": "cpu", "profile": "smoke"}


def test_a_file_holds_what_was_seen(tmp_path):
    (file := tmp_path / "seen.json").write_text(document([SEEN]))

    assert [dataclasses.asdict(one) for one in load(file)] == [dataclasses.asdict(SEEN)]


def test_the_report_shows_what_was_seen(tmp_path):
    (file := tmp_path / "seen.json").write_text(document([SEEN]))

    page, markdown, _ = (path.read_text() for path in write_report(tmp_path / "report.html", watched=file, **PAGE))

    reasons = "3 x the share of 20 % of the time was spent", "1 x backward: q, k or v are one <tensor>"
    assert f"| `library:attention` | 7 | 4 | 1 | 0.50 | 1 | {'; '.join(reasons)} |" in markdown
    cells = re.search(r'<th scope="row">library:attention</th>(.*?)</tr>', page).group(1)
    escaped = "<br>".join(reasons).replace("<tensor>", "&lt;tensor&gt;")
    assert re.findall(r"<td>(.*?)</td>", cells) == ["7", "4", "1", "0.50", "1", escaped]
    assert "attn-spec replay 0123abcd" in page


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read: No such file or directory"),
        ("[1", "is no report of a watch; pytest --attn-watch FUNCTION --attn-watch-report FILE.json writes one"),
        ("[1]", "is no report of a watch"),
        (f'{{"schema": {SCHEMA}, "functions": [{{"calls": 1}}]}}', "is no report of a watch"),
        ('{"schema": 99}', f"has the schema 99, and this version of attn-spec reads {SCHEMA}"),
    ],
)
def test_a_file_that_is_no_report_of_a_watch_is_told(tmp_path, text, says):
    file = tmp_path / "seen.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(TallyError, match=f"seen.json {says}"):
        load(file)
    with pytest.raises(TallyError, match=f"seen.json {says}"):
        write_report(tmp_path / "report.html", watched=file, **PAGE)
    assert not (tmp_path / "report.html").exists()
