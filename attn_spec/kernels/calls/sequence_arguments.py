"""Arguments of a packed or paged call that say where its sequences lie: their names in libraries, and their checks."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Integral
from typing import Any

import numpy as np

from attn_spec.kernels.calls.call import CallError, holds_integers, tensor_of
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.kernels.presentations.appending.extend import Extend
from attn_spec.kernels.presentations.packing.argument_names import is_number, spelled
from attn_spec.kernels.presentations.packing.latent_calls import LatentCalls
from attn_spec.kernels.presentations.packing.packed import Packed
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.problem.options import OPTIONS


def packed_rows() -> dict[str, Packed]:
    """Return the presentations whose calls say where each of B sequences lies, by name.

    Their tensors are q, keys and values, or caches of these.
    """
    every = {name: row for name, row in PRESENTATIONS.items() if isinstance(row, Packed)}
    apart = (LatentCalls, Extend)
    return {name: row for name, row in every.items() if row.counts_sequences and not isinstance(row, apart)}


def _has_bounds(name: str) -> bool:
    """Return whether an argument has the bounds of sequences, integers [B + 1]; others have [B] or [B, ..]."""
    return name.startswith("cu_seqlens") or name.endswith("indptr")


def _is_list(name: str) -> bool:
    """Return whether an argument lists the places of all sequences, each of which has a part of the list."""
    return name.endswith("indices")


def sequences_of(where: Mapping[str, Any]) -> int:
    """Return the number of sequences that arguments say the places of."""
    return next(iter(_counts(where).values()))


def of_sequence(where: Mapping[str, Any], b: int) -> dict[str, Any]:
    """Return the arguments of a call that has sequence b of a call alone."""
    found = dict(where)
    for name in _counts(where):
        found[name] = where[name][b : b + 2] if _has_bounds(name) else where[name][b : b + 1]
    return found


def _counts(where: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of sequences that each argument is about, without those that have no entry for each."""
    return {name: len(x) - _has_bounds(name) for name, x in where.items() if not is_number(name) and not _is_list(name)}


def needed(row: Packed) -> tuple[str, ...]:
    """Return the arguments without which a call does not say where its sequences lie."""
    return tuple(dict.fromkeys(name for name in row.says_where if not is_number(name)))


def named(words: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return the words of a call that mean one of some arguments, each with its name; those of None are left out.

    Raises :class:`CallError` if two words mean one argument.
    """
    meant = {spelling: name for name in names for spelling in spelled(name)}
    found: dict[str, str] = {}
    for word, value in words.items():
        if (name := meant.get(word)) is not None and value is not None:
            if name in found:
                raise CallError(f"{word} gives {name} a second time; leave one out")
            found[name] = word
    return {word: name for name, word in found.items()}


def recognised(words: Mapping[str, Any], axes: int) -> str | None:
    """Return the presentation that the words of a call mean, whose q has so many ``axes``; None if they name none.

    Of several rows the one with the most arguments is meant. Raises :class:`CallError` for words that say where some
    sequences lie, but not where all do.
    """
    rows = packed_rows()
    every = {name for row in rows.values() for name in needed(row)}
    given = set(named(words, every).values())
    if not (telling := given - set(OPTIONS)):
        return None
    first = min(telling)
    if "block_table" in given and "cu_seqlens_k" in given:
        given.add("seqused_k")
    fitting = [name for name, row in rows.items() if given.issuperset(needed(row)) and telling <= _takes(row)]
    if not fitting:
        near = [f"{name} needs {', '.join(needed(row))}" for name, row in rows.items() if telling <= _takes(row)]
        wanted = "; ".join(near) or "no call has all of them"
        raise CallError(f"{', '.join(sorted(telling))} do not say where all sequences lie; {wanted}")
    fitting = [name for name in fitting if len(rows[name].queries.axes) == axes]
    if not fitting:
        raise CallError(
            f"{first} is of a call whose q has the axes [tokens, heads, dimension], and q has {axes} axes here; "
            f"pass q.reshape(-1, *q.shape[-2:]) with its cu_seqlens_q, or leave {first} out"
        )
    return max(fitting, key=lambda name: len(needed(rows[name])))


def _takes(row: Packed) -> frozenset[str]:
    """Return the arguments that a call of a presentation may have to say where its sequences lie."""
    return frozenset(row.says_where) | ({"cu_seqlens_k"} if "block_table" in row.says_where else set())


def where_of(row: Packed, presentation: str, words: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a call that say where sequences lie, as int64 by their own names, and all other words.

    A paged call may give the numbers of keys as their bounds, ``cu_seqlens_k``. Raises :class:`CallError`.
    """
    meant = named(words, _takes(row))
    where = {name: _integers(word, words[word], name) for word, name in meant.items()}
    if "cu_seqlens_k" in where and "cu_seqlens_k" not in row.says_where:
        if "seqused_k" in where:
            raise CallError("a paged call takes seqused_k or cu_seqlens_k, and both are given; leave one out")
        where["seqused_k"] = np.diff(where.pop("cu_seqlens_k"))
    if missing := [name for name in needed(row) if name not in where]:
        raise CallError(f"a call in the presentation {presentation} needs {', '.join(missing)}")
    _check_counts(where)
    gone = set(named(dict.fromkeys(words, 0), {name for other in packed_rows().values() for name in _takes(other)}))
    others = {word: x for word, x in words.items() if word not in meant and not (x is None and word in gone)}
    return where, others


def _integers(word: str, x: Any, name: str) -> Any:
    """Return an argument as an integer or an int64 array. Raises :class:`CallError` for anything else."""
    if is_number(name):
        plain = x.item() if getattr(x, "shape", None) == () else x
        if not isinstance(plain, Integral) or isinstance(plain, bool) or plain < 0:
            raise CallError(f"{word} must be an integer of 0 or more, not {plain!r}")
        return int(plain)
    if not holds_integers(x := tensor_of(word, x)):
        raise CallError(f"{word} must be a tensor of integers, not of {x.dtype}")
    axes = 2 if name == "block_table" else 1
    if x.ndim != axes:
        raise CallError(f"{word} must have {('one axis', 'two axes')[axes - 1]}, not the shape {tuple(x.shape)}")
    found = values_of(x).astype(np.int64)
    if _has_bounds(name):
        _check_bounds(word, found)
    elif name != "block_table" and (found < 0).any():
        b = int(np.flatnonzero(found < 0)[0])
        raise CallError(f"{word}[{b}] is {found[b]}, and a sequence has 0 or more")
    return found


def _check_bounds(word: str, x: np.ndarray) -> None:
    """Raise :class:`CallError` unless bounds of sequences rise from 0 or more."""
    if not len(x):
        raise CallError(f"{word} must have a bound before the first sequence and one behind each, and it is empty")
    if x[0] < 0:
        raise CallError(f"{word}[0] is {x[0]}; bounds of sequences must be 0 or more")
    if (np.diff(x) < 0).any():
        at = int(np.flatnonzero(np.diff(x) < 0)[0]) + 1
        raise CallError(f"{word} must not fall, but {word}[{at}] is {x[at]}, behind {x[at - 1]}")


def _check_counts(where: Mapping[str, Any]) -> None:
    """Raise :class:`CallError` unless all arguments are about as many sequences."""
    counts = _counts(where)
    if len(set(counts.values())) > 1:
        raise CallError(f"{', '.join(f'{name} is of {n} sequences' for name, n in counts.items())}; they must agree")
