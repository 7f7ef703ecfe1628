"""Descales of a packed call in a test, as engines pass them: [B, Hkv], or a number for each slot of the keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attn_spec.kernels.calls.call import CallError, tensor_of
from attn_spec.kernels.presentations.packing.packed_descales import OF_KEYS
from attn_spec.problem.options import FACTORS, OPTIONS

#: Names of descales by the words of calls that mean them.
_MEANT = {word: name for name in FACTORS for word in (name, *OPTIONS[name].spellings)}


def in_axes(
    words: Mapping[str, Any], by_head: tuple[int, int], by_key: tuple[int, ...], axes: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the words of a call with descales that lie by sequence as [B, Hkv, 1, 1], and descales of slots by name.

    ``by_head`` is (B, Hkv), and ``by_key`` the shape of the keys without their dimension, whose ``axes`` have names.
    One number, and a tensor [B, Hkv, 1, 1], stay as they are. Raises :class:`CallError` for any other
    shape, and for one that may be both.
    """
    others, of_slots = dict(words), {}
    for word, value in words.items():
        if (name := _MEANT.get(word)) is None or value is None:
            continue
        x = tensor_of(word, value)
        shape, slots = tuple(map(int, x.shape)), by_key if name in OF_KEYS else ()
        if not shape or (len(shape) == len(OPTIONS[name].axes) and shape[2] == 1):
            continue
        if shape == by_head == slots:
            raise CallError(
                f"{word} of the shape {shape} may have a number for each sequence or for each slot of the keys; pass "
                f"{word}[:, :, None, None] for sequences, or {word}[:, :, None] for slots"
            )
        if shape == by_head:
            others[word] = x[:, :, None, None]
        elif slots and shape in (slots, (*slots, 1)):
            of_slots[name] = x if shape == slots else x[..., 0]
            del others[word]
        else:
            told = f" or [{', '.join(axes)}] = {slots}" if slots else ""
            raise CallError(f"{word} must be one number, or [B, Hkv] = {by_head}{told} here, not {shape}")
    return others, of_slots
