"""A GPU run as files: the page, the Markdown and the JSON say what was recorded; a document gives its page again."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from attn_spec.reports.gpu import page
from attn_spec.reports.gpu.examination import COULD_NOT_RUN, Examined
from attn_spec.reports.gpu.measurement import Case, Cost

SECONDS = {"torch_sdpa:flash_cuda": 1.0, "torch_eager": 8.0, "triton_tiled": 2.0}
COSTS = [
    Cost(
        kernel=name,
        made=made,
        case=Case(length=length, head_dim=64, causal=causal),
        seconds=seconds * length / 2**20,
        bytes=length * (length if name == "torch_eager" else 64),
    )
    for made in ("forward", "backward")
    for causal in (False, True)
    for length in (1024, 4096)
    for name, seconds in SECONDS.items()
]
COSTS[-1:] = [replace(COSTS[-1], seconds=None, bytes=None, failure="OutOfResources: shared | memory")]
EXAMINED = [
    Examined(kernel="triton_tiled", result="certified", contract="fused", counts={"held": 50, "total": 50}),
    Examined(
        kernel="torch_sdpa:flash_cuda",
        result="refuted",
        contract="fused(log_error=8)",
        counts={"held": 40, "refuted": 1, "total": 41},
        refuted=["accuracy.output, float16: the error is <infinite>"],
    ),
    Examined(kernel="torch_sdpa:cudnn", result=COULD_NOT_RUN, reason="no cuDNN here"),
]
MADE = page.Measured(
    device="cuda",
    environment={"device": "A <card>", "driver": "570.1"},
    examined=EXAMINED,
    costs=COSTS,
    tiles={"forward torch.bfloat16 (64,) 64": "BLOCK_Q: 64"},
)


def test_a_document_gives_what_was_measured():
    assert page.from_json(page.document(MADE)) == MADE
    assert json.loads(page.document(MADE))["headline"] == page.headline(MADE)


def test_another_version_is_refused():
    changed = json.loads(page.document(MADE)) | {"schema": page.SCHEMA + 1}

    with pytest.raises(ValueError, match="its schema is not 1"):
        page.from_json(json.dumps(changed))


def test_the_markdown_has_verdicts_ratios_tiles_and_the_machine():
    text = page.markdown(MADE)

    assert text.startswith("# 1 of 3 kernels that are made for a GPU pass on A <card>\n")
    assert "- **1 of 3** kernels are refuted" in text
    assert "- **2.0** times flash attention is what triton_tiled takes, backward of 1,024 keys, D = 64" in text
    assert "- **6.2 %** of the memory of eager attention is held there" in text
    assert "| `torch_sdpa:cudnn` | **could not run** |  | no cuDNN here |" in text
    assert "- `torch_sdpa:flash_cuda` accuracy.output, float16: the error is <infinite>" in text
    # 4,096 keys: 8 ms against 4 ms of flash and 32 ms of eager; 64 keys' worth of memory against 4,096.
    assert "| forward | 64 | no | 4,096 | `triton_tiled` | 7.8 | 2.0 | 0.25 | 0.25 | 0.016 |" in text
    assert "| backward | 64 | yes | 4,096 | `triton_tiled` | **no answer**: OutOfResources: shared \\| memory |" in text
    assert "| forward torch.bfloat16 (64,) 64 | BLOCK_Q: 64 |" in text
    assert "| driver | 570.1 |" in text


def test_the_page_says_the_same_and_is_whole():
    class Texts(HTMLParser):
        found = ""

        def handle_data(self, data):
            self.found += data

    text, reader = page.html(MADE), Texts()
    reader.feed(text)

    assert text == page.html(page.from_json(page.document(MADE)))
    for expected in ("A <card>", "no cuDNN here", "the error is <infinite>", "OutOfResources", "570.1", "BLOCK_Q: 64"):
        assert expected in reader.found
    assert text.count("<svg") == 2  # a drawing for each pass, at the one head dimension
    assert "triton_tiled, 4,096 keys: 2.0" in text
    assert "http://" not in text.replace("http://www.w3.org", "")


def test_without_costs_there_are_verdicts_alone():
    made = replace(MADE, costs=[], tiles={})

    assert "<svg" not in page.html(made)
    assert "## Costs" not in page.markdown(made)
    assert page.opening(made) == [("1 of 3", "kernels are refuted")]
