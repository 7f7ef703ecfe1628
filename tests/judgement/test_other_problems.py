"""Answers to another problem than was asked are known for what they are, and others for nothing."""

import numpy as np
import pytest

from attn_spec.contract.presets import FP32
from attn_spec.judgement.measure import judge, judge_gradients
from attn_spec.judgement.other_problems import MOST, right_for
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.search.drawing.regimes import Recipe

FLOAT32 = FP32.at("float32")
SIZES = {"query_length": 5, "key_length": 19, "head_dim": 4, "value_dim": 3}
SHARED = {"query_heads": 4, "kv_heads": 2}
PLAIN = Recipe(**SIZES)
#: Problem asked, problem answered, and the words for the difference.
MISTAKEN = {
    "no scale": (Recipe(**SIZES, scale=0.3), PLAIN, "without scale"),
    "no bias": (Recipe(**SIZES, bias="normal@BHQK"), PLAIN, "without bias"),
    "no softcap": (Recipe(**SIZES, softcap=0.5), PLAIN, "without softcap"),
    "not causal": (Recipe(**SIZES, causal=True), PLAIN, "without causal"),
    "unscaled": (PLAIN, Recipe(**SIZES, scale=1.0), "with 1 for its scale"),
    "multiplied": (PLAIN, Recipe(**SIZES, scale=2.0), "with its inverse for its scale"),
    "scaled twice": (PLAIN, Recipe(**SIZES, scale=0.25), "with its square for its scale"),
    "other corner": (
        Recipe(**SIZES, causal=True),
        Recipe(**SIZES, causal=True, causal_alignment="bottom_right"),
        "with causal_alignment='bottom_right'",
    ),
    "causal": (PLAIN, Recipe(**SIZES, causal=True), "with causal=True, causal_alignment='top_left'"),
    "causal in the other corner": (
        PLAIN,
        Recipe(**SIZES, causal=True, causal_alignment="bottom_right"),
        "with causal=True, causal_alignment='bottom_right'",
    ),
    "narrow window": (Recipe(**SIZES, window=(2, 1)), Recipe(**SIZES, window=(1, 1)), "with window=(1, 1)"),
    "wide window": (Recipe(**SIZES, window=(2, 1)), Recipe(**SIZES, window=(2, 2)), "with window=(2, 2)"),
}


#: The definition, whose answers are rounded to float32.
RIGHT = Subject(resolve("definition:128"), "float32")


def answered(problem):
    return RIGHT(problem)["output"]


def explained(asked, answer):
    return " or ".join(right_for(asked, lambda other: judge(other, FLOAT32, output=answer)))


@pytest.mark.parametrize("name", MISTAKEN)
def test_the_answer_to_another_problem_is_known(name):
    asked, other, words = MISTAKEN[name]

    assert words in explained(asked.problem(), answered(other.problem()))


def test_a_mask_that_hides_where_it_is_true():
    asked = Recipe(**SIZES, mask="random@BHQK").problem()

    assert "with its mask inverted" in explained(asked, answered(asked.replace(mask=~asked.mask)))


@pytest.mark.parametrize(("step", "words"), [(0, "a key earlier"), (2, "a key later")])
def test_a_diagonal_that_is_a_key_off(step, words):
    asked = Recipe(**SIZES, causal=True).problem()
    seen = np.tril(np.ones((5, 19), dtype=bool), step - 1)

    assert f"with the diagonal {words}" in explained(asked, answered(PLAIN.problem().replace(mask=seen[None, None])))


@pytest.mark.parametrize(("kept", "words"), [(16, "last 3 keys"), (18, "last key")])
def test_keys_past_a_tile_that_are_lost(kept, words):
    asked = PLAIN.problem()

    assert f"without its {words}" in explained(asked, answered(asked.take("K", range(kept))))


def test_heads_that_read_the_keys_of_others():
    asked = Recipe(**SIZES, **SHARED).problem()
    other = asked.replace(k=asked.k[:, [0, 1, 0, 1]], v=asked.v[:, [0, 1, 0, 1]])

    assert "with query head h reading kv head h % Hkv" in explained(asked, answered(other))


def test_gradients_of_another_problem():
    asked = Recipe(**SIZES, scale=0.3, bias="normal@BHQK").problem()
    dO = np.ones(asked.output_shape)
    found = RIGHT.gradients(asked.replace(scale=None), dO)

    def judged(other):
        return judge_gradients(other, FLOAT32, dO, {name: found[name] for name in ("dq", "dk", "dv")})

    assert "right for the same problem without scale" in right_for(asked, judged)


def test_the_right_answer_to_no_problem_nearby_is_not_explained():
    asked = Recipe(**SIZES, causal=True, scale=0.3).problem()

    assert explained(asked, answered(asked) * 1.25) == ""


def test_so_many_explanations_are_named_and_no_more():
    """One key and one value: whatever the scores, the output is that value."""
    asked = Recipe(query_length=1, key_length=1, head_dim=1, causal=True, scale=0.3, softcap=2.0, bias="normal@BHQK")

    assert explained(asked.problem(), answered(asked.problem())).count(" or ") == MOST - 1


def test_a_large_problem_is_not_judged_again():
    assert explained(Recipe(query_length=512, key_length=512, head_dim=16, scale=0.3).problem(), None) == ""
