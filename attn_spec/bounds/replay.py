"""The replay of quantisers: the codes and scales that a kernel has by its declaration, and what that leaves open.

Theorem. Let a quantiser be a chain of steps y -> f(y), each of which rises with y or falls: a mean is subtracted, the
largest magnitude of a block is divided by a constant, a number by a scale, a quotient is rounded to a code. If y lies
between two numbers, then f(y) lies between the results of the step, in its worst rounding, at both. So the code of an
element lies between two codes that the same steps find. These are one code unless the quotient's interval has a tie of
the rounding in it: then the kernel's code is either, a step apart.

Corollary. In float32, a quotient of two float32 numbers that is correctly rounded is known exactly. Its double in
float64 rounds to the same number, since 53 >= 2 * 24 + 2 (Figueroa, "When is double rounding innocuous?", 1995). So if
nothing is subtracted and ``division_error`` is 0, each interval is a point, and no element is open.

What is open of codes is a radius, which enters bounds as an error of operands (``operand_bounds``). What is open of a
scale is a relative error, which enters as a rounding of a descale does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from attn_spec.bounds.block_scales import codes_times_scales, holding
from attn_spec.bounds.codes import FLOAT64, Codes, quantised
from attn_spec.bounds.hadamard import rotated
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.quantisers import Quantiser
from attn_spec.contract.roundoff import gamma
from attn_spec.contract.terms import guard, term
from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS, narrowest
from attn_spec.problem import appended
from attn_spec.problem.dtypes import simplified
from attn_spec.problem.problem import Problem

#: Options of scales by the tensor that they are factors of.
DESCALE_OF = {"q": "q_descale", "k": "k_descale", "v": "v_descale"}


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Replayed(Problem):
    """The problem that a kernel with quantisers has left: codes for q, k, v, and scales as their descales.

    Each query head has a kv head of its own, and each row of q a scale of its own, which no kernel receives. So it is
    not validated. Arrays of None are 0.
    """

    #: Radii of the codes [B, Hq, S, D]: how far a kernel's may lie from those of the replay.
    q_radius: np.ndarray | None = None
    k_radius: np.ndarray | None = None
    v_radius: np.ndarray | None = None
    #: Relative errors of scales, [B, Hq, S or 1, 1].
    q_scale_error: np.ndarray | None = None
    k_scale_error: np.ndarray | None = None
    v_scale_error: np.ndarray | None = None
    #: Number that the kernel adds to the log-sum-exp of its scores, and its error, [B, Hq, Sq].
    lse_shift: np.ndarray | None = None
    lse_shift_error: np.ndarray | None = None
    #: Codes and scales are those of no dtype of a tensor, and are left as they are.
    made_of: tuple[Quantiser, ...] = field(default=())

    def __post_init__(self) -> None:
        """Make arrays read-only; nothing is validated."""
        for one in fields(self):
            if isinstance(x := getattr(self, one.name), np.ndarray):
                x.flags.writeable = False

    def radius(self, name: str) -> np.ndarray | None:
        """Return what is open of the codes of "q", "k" or "v"; None if nothing is."""
        return getattr(self, f"{name}_radius")

    def scale_error(self, descale: str) -> np.ndarray | float:
        """Return the relative errors of the scales of a descale, which broadcast as :meth:`by_pair` does."""
        found = getattr(self, f"{descale[0]}_scale_error")
        return 0.0 if found is None else found.swapaxes(2, 3) if descale != "q_descale" else found

    def _taken(self, axis: str, index: np.ndarray, places: np.ndarray, **changes: Any) -> Replayed:
        for name in (one.name for one in fields(self) if one.name.endswith(("_radius", "_error", "_shift"))):
            x, own = getattr(self, name), "Q" if name[0] in "ql" else "K"
            of_heads = x is not None and name.endswith("scale_error") and x.shape[2] == 1
            if x is not None and (axis in "BH" or (axis == own and not of_heads)):
                changes[name] = np.take(x, places, min("BHQK".index(axis), 2))
        if axis == "Q" and self.q_descale is not None and self.q_descale.shape[2] > 1:
            changes["q_descale"] = np.take(self.q_descale, index, 2)
        return super()._taken(axis, index, places, **changes)


def replay_of(problem: Problem, contract: ResolvedContract) -> Replayed | None:
    """Return the problem if the quantisers of a contract have left it; else None."""
    return problem if isinstance(problem, Replayed) and contract.quantisers else None


@np.errstate(all="ignore")
def replayed(problem: Problem, contract: ResolvedContract) -> Problem:
    """Return the problem of codes and scales that the quantisers of a contract leave of ``problem``.

    A problem that is replayed already, or a contract without quantisers, changes nothing.
    """
    if not contract.quantisers or isinstance(problem, Replayed):
        return problem
    made: dict[str, Any] = {one.name: getattr(problem, one.name) for one in fields(Problem)}
    made |= {name: problem.per_query_head(getattr(problem, name)) for name in "kv"}
    made |= {"made_of": contract.quantisers, "recipe": None}
    scaled = {DESCALE_OF[one.of] for one in contract.quantisers}
    held: dict[str, str] = {}
    for quantiser in contract.quantisers:
        name = quantiser.of
        x = appended.numbers(problem, name) if quantiser.is_of_appended else getattr(problem, name)
        low = high = x
        if quantiser.subtracts:
            low, high, mean, error = without_mean(problem, quantiser, x)
            made |= _shift(problem, contract, quantiser, mean, error)
        if quantiser.rotates:
            low, high = rotated(quantiser, low, high, problem.dtype_of(name))
        steps = quantised if quantiser.columns is None else codes_times_scales
        found = steps(quantiser, low, high, counted(problem, quantiser), starts(problem, quantiser))
        found = beside_others(problem, quantiser, found) if quantiser.is_of_appended else found
        repeated: Callable[[np.ndarray], np.ndarray] = (lambda y: y) if name == "q" else problem.per_query_head
        made[name], radius = repeated(found.codes), repeated(found.radius)
        made[f"{name}_radius"] = radius if radius.any() else None
        if quantiser.columns is not None:
            held[name] = holding(quantiser, problem.dtype_of(name), found.of_blocks)
        if quantiser.has_descale:
            made[DESCALE_OF[name]], error = (repeated(x) for x in _of_heads(quantiser, found))
            made[f"{name}_scale_error"] = error if error.any() else None
    # Each query head has a kv head of its own.
    made |= {name: x for name, x in problem.options_by_query_head().items() if name not in scaled}
    made["dtypes"] = _dtypes(problem, contract.quantisers, held)
    return Replayed(**made)


def beside_others(problem: Problem, quantiser: Quantiser, found: Codes) -> Codes:
    """Return codes and scales of the tokens that a call appends, beside those that caches have of all others.

    A token of zeros has codes of 0, whatever its scale.
    """
    x, d = (getattr(problem, name) for name in (quantiser.of, DESCALE_OF[quantiser.of]))
    new = counted(problem, quantiser)
    scales = np.where(new, found.scales, 1.0 if d is None else d)
    return replace(found, codes=np.where(new, found.codes, x), scales=scales)


def _of_heads(quantiser: Quantiser, found: Codes) -> tuple[np.ndarray, np.ndarray]:
    """Return scales and their errors, one for each head if all tokens of a head share one, [B, H, 1, 1].

    A kernel may then multiply its finished output by a scale of values. Tokens that do not count have other numbers.
    """
    if isinstance(quantiser.block, int) and quantiser.columns is None:
        return found.scales, found.scale_error
    scale = np.where(found.inside, found.scales, 0.0).max(axis=2, keepdims=True, initial=0.0)
    error = np.where(found.inside, found.scale_error, 0.0).max(axis=2, keepdims=True, initial=0.0)
    return np.where(scale == 0, 1.0, scale), error


def _dtypes(problem: Problem, quantisers: tuple[Quantiser, ...], held: dict[str, str]) -> Any:
    """Return the dtypes in which products find codes: those that hold them if q and k have one, else the problem's.

    Integers up to 127 are numbers of each dtype of a problem. Codes times scales are ``held`` in a format. Codes and
    scales of caches have the dtypes of these.
    """
    quantisers = tuple(one for one in quantisers if not one.is_of_appended)
    own = {name: problem.dtype_of(name) for name in "qkv"}
    formats = {one.of: narrowest(one.format).name for one in quantisers if not one.has_integers and one.columns is None}
    formats |= held
    if {"q", "k"} <= set(formats):
        own |= {name: formats[name] for name in "qk"}
    if "v" in formats:
        own["v"] = formats["v"]
    own |= held
    scales = {DESCALE_OF[one.of]: narrowest(one.scale_dtype).name for one in quantisers if one.columns is None}
    scales |= {DESCALE_OF[one.of]: "float32" for one in quantisers if one.second_level}
    options = {} if isinstance(problem.dtypes, str) else {n: d for n, d in problem.dtypes if set(n) - set("qkv")}
    return simplified(own | options | scales)


def counted(problem: Problem, quantiser: Quantiser) -> np.ndarray:
    """Return the tokens that a quantiser looks at, bool [B, 1, S, 1]."""
    if quantiser.is_of_appended:
        return appended.are_appended(problem)[..., None]
    there = problem.there if quantiser.of == "q" else problem.keys_there
    return (np.ones(there.shape, dtype=bool) if quantiser.over == "buffer" else there)[..., None]


def starts(problem: Problem, quantiser: Quantiser) -> np.ndarray:
    """Return the token that the first block of each batch entry starts from, integers [B]."""
    begins = quantiser.over == "sequence" and quantiser.of != "q"
    return problem.first_keys if begins else np.zeros(problem.batch, dtype=np.int64)


def without_mean(
    problem: Problem, quantiser: Quantiser, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return keys without their mean, the least and the most [B, Hkv, Sk, D]; the mean and its error [B, Hkv, 1, D].

    A sum of n terms in any order is off by gamma(n) times the sum of their sizes, and the quotient rounds once. Mean
    and difference are then stored, which rises with them.
    """
    there, form = counted(problem, quantiser), quantiser.mean_dtype
    form = problem.dtype_of("k") if form == "input" else form
    n = there.sum(axis=2, keepdims=True)
    sums, sizes = (np.where(there, y, 0.0).sum(axis=2, keepdims=True) for y in (x, np.abs(x)))
    least = np.maximum(n, 1)
    u, eta = FORMATS[quantiser.arithmetic].unit_roundoff, FORMATS[quantiser.arithmetic].smallest_normal
    relative = gamma((u, n + 2), (FLOAT64, n + 2))
    off = term("sums of the mean of keys", relative * sizes / least + eta)
    mean_low, mean_high = (bits.nearest(sums / least + sign * off, form) for sign in (-1, 1))
    mean = bits.nearest(sums / least, form)
    error = np.maximum(mean_high - mean, mean - mean_low)
    low, high = (bits.nearest(x - y, form) for y in (mean_high, mean_low))
    return low, high, mean, error


def _shift(
    problem: Problem, contract: ResolvedContract, quantiser: Quantiser, mean: np.ndarray, off: np.ndarray
) -> dict[str, np.ndarray]:
    """Return scale q.mean and the error that a kernel may make in it, [B, Hq, Sq].

    D products are added, and the sum is stored. The scale and log2(e), each rounded twice with its product, multiply.
    An error of infinity says that a product may overflow, and nothing is said of the row.
    """
    sigma, D = problem.scale_value, problem.head_dim
    of_heads, errors = (problem.per_query_head(x).swapaxes(2, 3) for x in (mean, off))
    shift, size = sigma * (problem.q @ of_heads), abs(sigma) * (np.abs(problem.q) @ np.abs(of_heads))
    form = problem.dtype_of("k") if quantiser.mean_dtype == "input" else quantiser.mean_dtype
    stored, work = FORMATS[form], contract.stages.score_accumulation
    rounded = gamma((work.u, D + 5), (stored.unit_roundoff, 2), (FLOAT64, D))
    error = (
        term("the mean of keys in the log-sum-exp", abs(sigma) * (np.abs(problem.q) @ errors))
        + term("roundings of a query's product with the mean", rounded * size)
        + term("underflow of a query's product with the mean", (D + 3) * (work.eta + stored.smallest_normal))
    )
    largest = min(stored.largest, contract.largest("score_accumulation", "softmax")) / 2
    fits = np.maximum(size, size / (abs(sigma) or 1.0)) + error <= largest
    error = np.where(guard("products with the mean of keys that overflow", fits, True), error, np.inf)
    return {"lse_shift": shift[..., 0], "lse_shift_error": error[..., 0]}
