"""A C function is passed every option that a word says, and a function that takes one for another is refuted."""

import pytest

from attn_spec import c_kernel
from attn_spec.kernels.c_abi.words import NUMBERS, TENSOR_OPTIONS
from tests.kernels.c_abi.compiled import FOLDER, library, needs_compiler
from tests.kernels.presentations.packing.test_plain_packed_kernels import verdict

pytestmark = needs_compiler

OPTIONS = """int options(const double *q, const double *k, const double *v, double *out, double *lse, const bool *mask,
    const double *bias, const double *alibi_slopes, const double *sinks, const bool *dropout_keep,
    const int64_t *seqused_q, const int64_t *seqused_k, const int64_t *leftpad_k, int B, int Hq, int Hkv, int Sq,
    int Sk, int D, int Dv, double scale, double softcap, double dropout_p, int causal, int64_t window_left,
    int64_t window_right, int64_t window_sinks, int64_t attention_chunk)"""
#: A property of each option or two.
PROPERTIES = (
    "accuracy.output_is_within_its_bound",
    "accuracy.softcapped_scores_give_an_answer_within_its_bound",
    "chunks.each_chunk_is_attention_of_its_own",
    "dropout.weights_that_are_kept_alone_meet_values",
    "lengths.the_diagonal_is_that_of_each_sequence",
    "lengths.padding_on_the_left_moves_a_sequence_and_changes_nothing",
    "masking.a_mask_is_a_bias_of_minus_infinity",
    "masking.a_window_is_the_mask_of_its_band",
    "positions.alibi_gives_an_answer_within_its_bound",
    "sinks.a_sink_takes_its_share_of_the_weight",
    "window_sinks.the_edge_of_a_chunk_masks_sinks",
)


def made(prototype=OPTIONS):
    facts = {"contract": "fp64", "presentation": "BSHD", "supports": ("empty",)}
    return c_kernel(
        library("options.c"),
        prototype,
        dtypes=["float64"],
        conventions={"masked_nonfinite": "may_leak"},
        **facts,
    )


def test_the_function_is_passed_every_option():
    assert made().supports >= {*TENSOR_OPTIONS, *(number.option for number in NUMBERS.values())}


@pytest.mark.parametrize("name", PROPERTIES)
def test_each_option_means_what_the_problem_says(name):
    assert verdict(made(), name, 4, "float64") == ("held", "")


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("window_left", "window_right", "masking.a_window_is_the_mask_of_its_band"),
        ("window_sinks", "attention_chunk", "chunks.each_chunk_is_attention_of_its_own"),
        ("scale", "softcap", "accuracy.softcapped_scores_give_an_answer_within_its_bound"),
        ("mask", "dropout_keep", "dropout.weights_that_are_kept_alone_meet_values"),
        ("seqused_k", "leftpad_k", "lengths.the_diagonal_is_that_of_each_sequence"),
    ],
)
def test_parameters_of_one_type_in_the_wrong_order_are_refuted(one, other, name):
    swapped = OPTIONS.replace(one, "?").replace(other, one).replace("?", other)

    found, message = verdict(made(swapped), name, 6, "float64")

    assert found == "refuted"
    assert "raised" not in message


@pytest.mark.exhaustive
def test_the_function_passes_every_property(folder, attn_spec):
    root = str(FOLDER.parents[2])
    source = f"import sys\n\nsys.path.insert(0, {root!r})\nfrom tests.kernels.c_abi.test_options import made\n"
    (folder / "in_c.py").write_text(f"{source}\nattention = made()\n")
    done = attn_spec("certify", "in_c.py:attention", timeout=600)

    assert done.returncode == 0
    assert " 0 refuted, 0 suspect" in done.stdout
