"""Dtypes of option tensors that differ from the dtype of q, k and v, such as a float32 bias beside float16 inputs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from attn_spec.numbers.formats import DTYPES
from attn_spec.problem.options import OPTIONS

#: Dtype of an option's tensor by the option's name, as a mapping or as pairs.
OptionDtypes = Mapping[str, str] | tuple[tuple[str, str], ...]


def pairs_of_dtypes(given: OptionDtypes) -> tuple[tuple[str, str], ...]:
    """Return the dtypes of options as pairs (option, dtype), sorted by name."""
    pairs = given.items() if isinstance(given, Mapping) else given
    return tuple(sorted((name, dtype) for name, dtype in pairs))


def refused_dtypes(given: OptionDtypes) -> str | None:
    """Return why tensors of options cannot have these dtypes; None if they can."""
    pairs = pairs_of_dtypes(given)
    able = [name for name, row in OPTIONS.items() if row.tensor is np.float64]
    if unknown := [name for name, _ in pairs if name not in able]:
        return f"option_dtypes must name options that are tensors of numbers ({', '.join(able)}), not {unknown[0]!r}"
    if unknown := [dtype for _, dtype in pairs if dtype not in DTYPES]:
        return f"option_dtypes must be of {', '.join(DTYPES)}, not {unknown[0]!r}"
    return None
