"""Kernels that see keys by position: chunks, windows with sinks, lengths and padding on the left, all in one call."""

from itertools import product

import numpy as np
import pytest
from attn_spec.implementations import numpy_tiled, torch_tiled
from attn_spec.implementations.visibility import Band

from attn_spec.emulation.sound import SOUND
from attn_spec.kernels.subject import Subject
from attn_spec.search.assertions import assert_rows_within_bound, assert_within_bound, selected
from attn_spec.search.drawing.regimes import Recipe

KERNELS = {
    "numpy_tiled": numpy_tiled.attention,
    "torch_tiled": torch_tiled.attention,
    "emulated": SOUND["random_order"],
}


def lengths(*numbers):
    return np.array(numbers).reshape(-1, 1, 1, 1)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("causal", "alignment"), [(True, "bottom_right"), (False, "top_left")])
def test_each_sequence_of_a_long_context_has_the_answer_that_it_has_alone(name, causal, alignment):
    """Tiles of 16 and 32 keys are skipped for some sequences and not for others, whose first keys differ."""
    shape = {"batch": 3, "query_heads": 2, "kv_heads": 1, "query_length": 40, "key_length": 70, "head_dim": 4}
    problem = Recipe(**shape).problem().replace(
        causal=causal, causal_alignment=alignment, window=(6, 6), window_sinks=3, attention_chunk=24,
        seqused_q=lengths(40, 33, 40), seqused_k=lengths(70, 61, 30), leftpad_k=lengths(0, 17, 5),
    )  # fmt: skip
    subject = Subject(KERNELS[name], "float32")
    answer = subject(problem)

    assert_within_bound(subject, problem, answer)
    for entry in range(3):
        alone = problem.sequence(entry)
        rows = selected(answer, np.s_[entry : entry + 1, :, : alone.query_length])
        assert_rows_within_bound(subject, alone, rows)
        if entry:  # keys that count from the start of the tensor, not behind the padding, are other keys
            moved = problem.replace(leftpad_k=None, mask=problem.keys_there[:, :, None])
            assert (moved.visible[entry] != problem.visible[entry]).any()


def test_a_tile_that_some_query_sees_is_reached():
    """Every band, padding and tile of a small grid: a skipped tile has no visible key, and some tiles are skipped."""
    skipped = 0
    for left, right, sinks, chunk in product((None, 0, 2), (None, 0, 1), (0, 3), (None, 1, 4)):
        band = Band(left, right, sinks, chunk)
        for first, size, start in product((-5, 0, 3, 9), (1, 4), (0, 4, 8)):
            padding, keys = lengths(0, 2, 5), slice(start, start + 4)
            aligned = first + padding + np.arange(size)[:, None]
            seen = band.sees(aligned, np.arange(keys.start, keys.stop), padding)
            reached = band.reaches(first + padding, first + padding + size - 1, keys, padding)
            assert reached or not seen.any()
            skipped += not reached
            one = band.sees(first + np.arange(size)[:, None], np.arange(keys.start, keys.stop))
            assert (one == seen[0]).all()
            assert band.reaches(first, first + size - 1, keys) or not one.any()
    assert skipped > 100
