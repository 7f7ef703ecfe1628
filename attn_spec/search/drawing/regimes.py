"""Regimes: named recipes for tensor values. Each row of the table says which bug its values bring to light.

A recipe starts from independent N(0, 1) tensors, and one or more regimes change them in turn. The regime
``"rising+v_one"`` makes the scores rise from key to key and sets V = 1. Values depend only on the seed, the regime and
the shape (NumPy's Philox streams). They are rounded to the recipe's dtype inside its finite range.
"""

from __future__ import annotations

from dataclasses import Field, asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from attn_spec.numbers import bits
from attn_spec.numbers.formats import FORMATS
from attn_spec.problem import patterns
from attn_spec.problem.dtypes import Dtypes, dtype_of, refusal, simplified, spelled, with_dtypes
from attn_spec.problem.options import OPTIONS, Options
from attn_spec.problem.options.option import Option
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing import fills
from attn_spec.search.drawing.clipping import CLIPS, clipped

if TYPE_CHECKING:
    from collections.abc import Callable


class RecipeError(ValueError):
    """A recipe names an unknown regime or pattern, or a document is not a recipe; the message says which names are
    known.
    """


@dataclass(frozen=True, kw_only=True)
class Regime:
    """A row of the table of regimes."""

    name: str
    #: Description of the values.
    summary: str
    #: Defect that the values bring to light.
    hunts: str
    #: True if the values are independent and without ties, as statistical tests of rounding errors need.
    generic: bool = False
    fill: Callable[[fills.Draft], None]


_SCORES = (
    Regime(name="normal", fill=fills.nothing, generic=True,
           summary="every entry is N(0, 1)",
           hunts="what ordinary tests hunt: a wrong formula, a wrong index"),
    Regime(name="uniform", fill=fills.constant("q", 0.0),
           summary="every score is zero",
           hunts="keys counted twice, lost, or added by zero padding"),
    Regime(name="offset_q", fill=fills.offset_queries, generic=True,
           summary="queries have mean 3",
           hunts="a mean correction that is misaddressed, which zero-mean queries hide"),
    Regime(name="integers", fill=fills.integers,
           summary="small integers, so that q.k is exact in any order",
           hunts="inexact exponentials and scales, which the rounding of scores hides otherwise"),
    Regime(name="ties", fill=fills.duplicate_keys,
           summary="at most three different keys",
           hunts="a maximum attained several times, duplicates dropped"),
    Regime(name="constant_keys", fill=fills.constant_keys,
           summary="all keys are equal",
           hunts="weights that depend on the position of a key"),
    Regime(name="near_ties", fill=fills.near_ties,
           summary="keys differ by one unit in the last place",
           hunts="scores or operands rounded to fewer bits than declared"),
    Regime(name="large", fill=fills.spread(10.0), generic=True,
           summary="scores of standard deviation 10",
           hunts="a wrong base of the exponential, scores stored in a narrow format"),
    Regime(name="huge", fill=fills.spread(300.0),
           summary="scores of standard deviation 300",
           hunts="a softmax that does not subtract the maximum"),
    Regime(name="one_hot", fill=fills.peak(fills.any_key, 40.0),
           summary="one key holds all the weight",
           hunts="a lost key, a leading key that is rescaled away"),
    Regime(name="first_key_dominates", fill=fills.peak(lambda t: np.zeros(1), 20.0),
           summary="the first key holds all the weight",
           hunts="the first tile dropped, or its maximum forgotten"),
    Regime(name="rising", fill=fills.staircase(1.0),
           summary="the maximum rises by 1 at every key, or at every 16th, 32nd or 64th",
           hunts="an accumulator or row sum that is not rescaled when the maximum rises"),
    Regime(name="falling", fill=fills.staircase(-1.0),
           summary="the maximum falls by 1 at every key, or at every 16th, 32nd or 64th",
           hunts="a maximum that follows the current tile instead of the running one"),
    Regime(name="rising_25", fill=fills.staircase(25.0),
           summary="the maximum jumps by 25 at every key, or at every 16th, 32nd or 64th",
           hunts="a rescale factor kept in float16, or flushed to zero too early"),
    Regime(name="rising_100", fill=fills.staircase(100.0),
           summary="the maximum jumps by 100 at every key, or at every 16th, 32nd or 64th",
           hunts="overflow of exp(m_new - m_old), the rescale factor taken the wrong way round"),
    Regime(name="falling_100", fill=fills.staircase(-100.0),
           summary="the maximum falls by 100 at every key, or at every 16th, 32nd or 64th",
           hunts="exp(s - m) with the wrong m, log(1 + exp(b - a)) that overflows in a merge"),
    Regime(name="cancellation", fill=fills.cancellation,
           summary="products of size 2**8 that cancel in q.k",
           hunts="scores accumulated in a narrow format"),
    Regime(name="overflow_float16", fill=fills.overflow_float16,
           summary="abs(q.k) exceeds 65504, the scaled score does not",
           hunts="q.k accumulated or stored in float16 before it is scaled"),
    Regime(name="activations", fill=fills.activations,
           summary="low rank plus outlier channels, like real activations",
           hunts="errors that independent entries average away"),
    Regime(name="tiny", fill=fills.tiny,
           summary="products of q and k are subnormal",
           hunts="flushed products that become NaN or infinity later"),
    Regime(name="subnormal", fill=fills.subnormal,
           summary="q and k are subnormal",
           hunts="a division by a flushed norm"),
)  # fmt: skip
_VALUES = (
    Regime(name="v_one", fill=fills.constant("v", 1.0),
           summary="V = 1, so that every output is 1",
           hunts="weights that do not sum to one, numerator and denominator that disagree"),
    Regime(name="v_one_hot", fill=fills.one_hot_values,
           summary="V reads out the weights, some keys per column",
           hunts="one wrong weight among many"),
    Regime(name="v_offset", fill=fills.offset_values,
           summary="a spread of a few units in the last place around 96",
           hunts="probabilities rounded in the numerator alone, a systematic bias"),
    Regime(name="v_alternating", fill=fills.alternating_values,
           summary="values that cancel in pairs",
           hunts="an output accumulator in a narrow format"),
    Regime(name="v_waves", fill=fills.wave_values,
           summary="columns that swing along the keys between 0 and 2, each as often as its number",
           hunts="a run of keys lost among many, at the end or in the middle"),
    Regime(name="v_huge", fill=fills.huge_values,
           summary="values as large as a sum over the keys allows",
           hunts="an output accumulator that overflows"),
    Regime(name="v_tiny", fill=fills.tiny_values,
           summary="values around the smallest normal number",
           hunts="results flushed to zero"),
    Regime(name="v_wide", fill=fills.wide_values,
           summary="exponents spread over half the range",
           hunts="a small weight dropped from a large value"),
    Regime(name="v_counterweight", fill=fills.counterweight_values,
           summary="values that undo the weights of the first query",
           hunts="small weights and rescale factors flushed to zero although their values are large"),
)  # fmt: skip

#: Every regime by name, from plain to wild. Names that start with ``v_`` change only V.
REGIMES: dict[str, Regime] = {regime.name: regime for regime in (*_SCORES, *_VALUES)}
#: Options that a recipe names a pattern for.
_OF_PATTERNS = {name: row for name, row in OPTIONS.items() if row.patterns}
SCORE_REGIMES = tuple(regime.name for regime in _SCORES)
VALUE_REGIMES = tuple(regime.name for regime in _VALUES)
#: Integers that stand for 1 in a regime's numbers: with 32, normal numbers up to 4 have codes up to 127. Fewer where
#: queries are integers too, whose products would be 1024 times as large.
STEPS, STEPS_OF_BOTH = 32.0, 8.0
#: Constants for :attr:`Recipe.shift`: around the underflow of float32, past bad fill values, to the edge of float16.
SHIFTS = (0.0, 30.0, -30.0, 100.0, -100.0, 120.0, -120.0, 1e3, -1e3, 1.2e4, -1.2e4, 6e4, -6e4)


@dataclass(frozen=True, repr=False, kw_only=True)
class Recipe(Options):
    """Shape, options, regime and seed from which a problem is made again. Raises :class:`RecipeError`."""

    #: Names from REGIMES joined with "+", applied in turn.
    regime: str = "normal"
    seed: int = 0
    #: Dtype of all tensors, or dtypes by name, as in :class:`Problem`.
    dtypes: Dtypes = "float32"
    batch: int = 1
    query_heads: int = 1
    kv_heads: int = 1
    query_length: int = 1
    key_length: int = 1
    #: Width of queries and keys; always 1 with ``states``, whose products have no influence.
    head_dim: int = 1
    value_dim: int = 1
    #: Length of ``score_vector``, or width of a layer's queries.
    score_width: int = 1
    #: Width of the values of a layer's head.
    head_value_dim: int = 1
    #: Width of a layer's output.
    output_width: int = 1
    #: Constant added to every score through one direction of k.
    shift: float = 0.0
    #: Limits that lengths of sequences are clipped to, as in ``kernels.limits``.
    query_lengths: tuple[int, ...] | None = None
    keys_reach_queries: bool = False
    least_keys: int = 0
    equal_lengths: bool = False
    #: Power of 2 by which q and k are multiplied in the end.
    size: float = 1.0
    #: Power of 2 by which v is multiplied in the end; v of ``latent`` is k, which ``size`` multiplies.
    value_size: float = 1.0

    def __post_init__(self) -> None:
        if (reason := refusal(self.dtypes)) is not None:
            raise RecipeError(f"dtypes {reason}")
        object.__setattr__(self, "dtypes", simplified(self.dtypes))
        if self.states:
            object.__setattr__(self, "head_dim", 1)
        for name in self.regime.split("+"):
            if name not in REGIMES:
                raise RecipeError(f"unknown regime {name!r}; known are {', '.join(REGIMES)}")
        for option, row in _OF_PATTERNS.items():
            name = getattr(self, option)
            if name is not None and not patterns.is_known(name, row.patterns, row.axes):
                stems = ", ".join(row.patterns)
                raise RecipeError(f"unknown {option} pattern {name!r}; known are {stems}, each with @{row.axes}")

    def problem(self) -> Problem:
        """Return the problem, with the same bits on every call."""
        draft = self._draft()
        for name in self.regime.split("+"):
            REGIMES[name].fill(draft)
        if self.latent:
            draft.tie(values=any(name in VALUE_REGIMES for name in self.regime.split("+")))
        if self.shift:
            draft.shift(self.shift)
        options = self._options()
        if self.states:
            options["bias"] = self._of_states(draft, options["bias"])
            draft.q, draft.k = np.zeros_like(draft.q), np.zeros_like(draft.k)
        q, k = (self._rounded(name, self.size * self._unit(name) * x) for name, x in (("q", draft.q), ("k", draft.k)))
        v = k[..., : self.value_dim]
        if not self.latent:
            v = self._rounded("v", self.value_size * self._unit("v") * draft.v)
        return Problem(
            q=q,
            k=k,
            v=v,
            dtypes=self.dtypes,
            recipe=self,
            **options,
        )

    def _of_states(self, draft: fills.Draft, bias: np.ndarray | None) -> bits.Values:
        """Return log-sum-exps of states as a bias: the scores that q and k would have, and the bias of the recipe."""
        k = np.repeat(draft.k, draft.q.shape[1] // draft.k.shape[1], axis=1)
        scores = self.size**2 * draft.scale * (draft.q @ k.swapaxes(-1, -2))
        return self._rounded("bias", scores if bias is None else scores + bias)

    @property
    def dtype(self) -> str:
        """Dtype of q, k and v, or theirs as ``problem.dtypes`` spells them."""
        return spelled(self.dtypes)

    @property
    def lengths(self) -> dict[str, int]:
        """Lengths of the axes by letter, as the problem has them."""
        lengths = (self.batch, self.query_heads, self.query_length, self.key_length, self.head_dim, self.score_width)
        widths = (self.value_dim, self.head_value_dim, self.output_width)
        kv_heads = 1 if self.projects else self.kv_heads
        return dict(zip("BHQKDAVUOG", (*lengths, *widths, kv_heads), strict=True))

    @property
    def projects(self) -> bool:
        """True if the problem is a layer."""
        return self.query_projection is not None

    def with_values_of(self, other: Recipe) -> Recipe:
        """Return a recipe with this shape and these options, and with the values of ``other``."""
        values = {name: getattr(other, name) for name in ("regime", "shift", "size", "value_size", "seed")}
        return replace(self, **values)

    def signature(self) -> Recipe:
        """Return the recipe with plain values, which is equal for all recipes with the same shape and options."""
        return self.with_values_of(Recipe())

    def _options(self) -> dict[str, Any]:
        """Return all options, with lengths of sequences that are within the limits of the recipe."""
        made = {name: self._option(name, row) for name, row in OPTIONS.items()}
        return clipped(made, self.lengths, **{name: getattr(self, name) for name in CLIPS})

    def _option(self, name: str, row: Option) -> Any:
        """Return the value of an option: a tensor if the recipe has the name of a pattern."""
        value = getattr(self, name)
        if row.tensor is None or value is None:
            return value
        shape = row.shape(self.lengths)
        most = (self.lengths[row.up_to],) if row.up_to else ()
        tensor = patterns.made(row.patterns, value, self._stream(name), shape, *most).astype(row.tensor)
        return self._rounded(name, tensor) if row.tensor is np.float64 else tensor

    def _unit(self, name: str) -> float:
        """Return the factor of the numbers of a regime: integers are multiples of their unit, and scores stay so large.

        Queries beside integer keys are as much smaller. If both are integers, neither makes room for the other.
        """
        of_q, of_k, of_own = (FORMATS[dtype_of(self.dtypes, each)].is_integer for each in ("q", "k", name))
        if of_own:
            return STEPS_OF_BOTH if of_q and name != "v" else STEPS
        return 1 / STEPS if name == "q" and of_k else 1.0

    def _rounded(self, name: str, x: np.ndarray) -> bits.Values:
        """Return the nearest numbers of a tensor's dtype inside its finite range; -inf, which masks a key, stays."""
        dtype = dtype_of(self.dtypes, name)
        limit = FORMATS[dtype].largest
        return bits.nearest(np.where(np.isneginf(x), x, np.clip(x, -limit, limit)), dtype)

    def _draft(self) -> fills.Draft:
        heads, kv_heads = (self.query_heads, self.kv_heads) if not self.projects else (1, 1)
        kv = (self.batch, kv_heads, self.key_length)
        return fills.Draft(
            q=self._stream("q").standard_normal((self.batch, heads, self.query_length, self.head_dim)),
            k=self._stream("k").standard_normal((*kv, self.head_dim)),
            v=self._stream("v").standard_normal((*kv, self.value_dim)),
            rng=self._stream(self.regime),
            forms={name: FORMATS[dtype_of(self.dtypes, name)] for name in "qkv"},
            scale=(self.head_dim**-0.5 if self.scale is None else self.scale) or 1.0,  # the scale of q.k
            tied=self.latent,
        )

    def _stream(self, purpose: str) -> np.random.Generator:
        entropy = [self.seed, *purpose.encode()]
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))

    def __repr__(self) -> str:
        changed = [
            f"{item.name}={value!r}" for item in _ordered() if (value := getattr(self, item.name)) != item.default
        ]
        return f"Recipe({', '.join(changed)})"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document that :meth:`from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Self:
        """Return the recipe of a document that :meth:`to_json` wrote. Raises :class:`RecipeError` for others."""
        document = with_dtypes(document)
        if unknown := sorted(set(document) - {item.name for item in fields(cls)}):
            known = ", ".join(item.name for item in _ordered())
            raise RecipeError(f"the recipe document has unknown fields {', '.join(unknown)}; known are {known}")
        return cls(**bits.with_tuples(document))


def _ordered() -> list[Field[Any]]:
    """Return the fields of a recipe, shape and values before the options."""
    return sorted(fields(Recipe), key=lambda item: item.name in OPTIONS)
