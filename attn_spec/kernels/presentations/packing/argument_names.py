"""Names, in several libraries, of the arguments of a packed or paged call that say where its sequences lie."""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable, Mapping

from attn_spec.problem.options import OPTIONS

#: Names of other libraries for arguments of the same meaning: PyTorch's ``varlen_attn``, Flash-Attention 3, vLLM.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "cu_seqlens_q": ("cu_seq_q",),
    "cu_seqlens_k": ("cu_seq_k", "cu_seqlens_kv"),
    "max_seqlen_q": ("max_q",),
    "max_seqlen_k": ("max_k", "max_seqlen_kv"),
    "block_table": ("page_table", "block_tables"),
    "k_cache": ("key_cache",),
    "v_cache": ("value_cache",),
    "k_new": ("k", "key"),
    "v_new": ("v", "value"),
    "seqused_k": OPTIONS["seqused_k"].spellings,
    "seqused_q": OPTIONS["seqused_q"].spellings,
}
#: Argument of a call that has no values of its own: the number Dv of the first columns of a key that are its value.
VALUE_WIDTH = "head_dim_v"
#: Parts of names by which a parameter looks as if it said where sequences lie.
_LIKE = re.compile(r"cu_?seq|indptr|kv_indices|(block|page)_?tables?|slot_mapping|seq_?lens|last_page|segment_ids")


def is_number(name: str) -> bool:
    """Return whether an argument is one integer, which no call needs to find its sequences: a largest length, or the
    width of values.
    """
    return name.startswith("max_") or name == VALUE_WIDTH


def spelled(name: str) -> tuple[str, ...]:
    """Return the names that an argument may have."""
    return (name, *SPELLINGS.get(name, ()))


def keyword_of(name: str, parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """Return the parameter of a callable by which it takes an argument; None for one integer that it does not take."""
    found = next((each for each in spelled(name) if each in parameters), None)
    takes_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return None if found is None and is_number(name) and not takes_any else found or name


def named_by(parameters: Collection[str], recognised_by: Mapping[str, tuple[str, ...]]) -> str | None:
    """Return the presentation whose arguments are parameters of a callable, that with the most; None if there is none.

    ``recognised_by`` has the arguments of each presentation. Those that are one integer may be missing, and decide
    between presentations that have equally many others.
    """
    needed = {name: [one for one in every if not is_number(one)] for name, every in recognised_by.items()}
    own = {
        name: (len(every), sum(is_number(one) and one in parameters for one in recognised_by[name]))
        for name, every in needed.items()
        if set(every) - set(OPTIONS) and all(any(word in parameters for word in spelled(one)) for one in every)
    }
    return max(own, key=own.__getitem__) if own else None


def like_places(names: Iterable[str]) -> list[str]:
    """Return the names of parameters that look as if they said where sequences lie."""
    return [name for name in names if _LIKE.search(name) and name not in OPTIONS]


def of_calls(parameters: Collection[str], recognised_by: Mapping[str, tuple[str, ...]]) -> tuple[list[str], str | None]:
    """Return the parameters of a callable that look like arguments of a call in a presentation, and its name.

    The list has parameters that say where sequences lie, or else those by which the presentation is recognised. The
    name is None if no presentation has such arguments.
    """
    own = named_by(parameters, recognised_by)
    words = {word for one in recognised_by.get(own or "", ()) for word in spelled(one)}
    return like_places(parameters) or [name for name in parameters if name in words], own
