"""Operands of a score under any arithmetic: the formulas of ``attention.scores``, with every operation rounded.

A kernel changes q and k first and then attends as for a product of the two. Its gradients pass back through the same
formulas, head by head, before heads that share a key are summed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attn_spec.attention.arithmetic import FLOATS, by_pair
from attn_spec.attention.rotations import Rotation, rotations
from attn_spec.attention.scores import FEATURE_MAPS, SCORES, Score
from attn_spec.contract.contract import ResolvedContract
from attn_spec.kernels.frameworks.framework import values_of
from attn_spec.problem.handled import CODED, refuse
from attn_spec.problem.options import OPTIONS, parameters
from attn_spec.problem.options.option import SCORE

from .arithmetic import Order
from .matrix_products import MatrixProducts
from .sequences import LENGTHS, sequences_of

#: Parameters of scores that are evaluated beside operands, see ``problem.handled``.
HANDLES = ("feature_epsilon",)
#: Options that choose a score.
CHOICES = tuple(name for name, row in OPTIONS.items() if row.kind == SCORE)


@dataclass(frozen=True, eq=False)
class Number:
    """Numbers [.., rows, columns], and the stage or format that holds them."""

    values: np.ndarray
    source: str
    steps: MatrixProducts

    def __mul__(self, other: Number) -> Number:
        return Execution(self.steps).finished(self.values * other.values)

    def __add__(self, other: Number) -> Number:
        return Execution(self.steps).finished(self.values + other.values)

    def __sub__(self, other: Number) -> Number:
        return Execution(self.steps).finished(self.values - other.values)

    def __truediv__(self, other: Number) -> Number:
        return Execution(self.steps).quotient(self, other)


class Execution:
    """The operations of ``attention.arithmetic`` under a contract: rounded as sums of scores are, stored as scores."""

    def __init__(self, steps: MatrixProducts) -> None:
        self.steps = steps

    def given(self, x: np.ndarray) -> Number:
        """Return real numbers as a kernel holds them."""
        stage = "score_accumulation"
        return Number(self.steps.round(self.steps.array(x), stage), stage, self.steps)

    def slope_of_tanh(self, s: Number, y: Number, c: Number) -> Number:
        del y
        t = self.tanh(s / c)
        return self.complement(t * t)

    def finished(self, x: Any) -> Number:
        """Round and store the result of one operation."""
        return self.stored(self.steps.round(x, "score_accumulation"))

    def stored(self, x: Any) -> Number:
        """Store accumulated numbers, which their last addition has rounded."""
        return Number(self.steps.convert(x, "stored_scores", "score_accumulation"), "stored_scores", self.steps)

    def product(self, x: Number, y: Number) -> Number:
        a, b = self.steps.enter(x.values, x.source), self.steps.enter(y.values, y.source)
        if not (count := a.shape[-1]):
            return self.stored(a @ b)
        total = self.steps.add_products(lambda t: (a[..., t, None], b[..., None, t, :]), count, "score_accumulation")
        return self.stored(total)

    def as_operand(self, x: Number, stage: str = "operands") -> Number:
        """Return a result in the format of operands or of another stage, if the order stores such results."""
        if not self.steps.order.results_stored:
            return x
        return replace(x, values=self.steps.convert(x.values, stage, x.source), source=stage)

    def shifted(self, y: Number, b: Number, x: Number) -> Number:  # noqa: ARG002 - one signature of operations
        return y + self.loaded(b)

    def loaded(self, b: Number) -> Number:
        """Return a bias as it is added."""
        if not self.steps.order.bias_rounded:
            return b
        return replace(b, values=self.steps.convert(b.values, "stored_scores", b.source))

    def transposed(self, x: Number) -> Number:
        return replace(x, values=x.values.swapaxes(-1, -2))

    def total(self, x: Number) -> Number:
        return self.summed(x.values[..., None], -2, x.source)

    def root(self, x: Number) -> Number:
        return self.finished(self.steps.xp.sqrt(x.values))

    def quotient(self, x: Number, y: Number) -> Number:
        divides = self.steps.order.divides
        found = x.values / y.values if divides else x.values * self.finished(1 / y.values).values
        return self.finished(self.steps.xp.where((x.values == 0) & (y.values == 0), 0.0, found))

    def linear_quotient(self, linear: Callable[[Number], Number], x: Number, y: Number) -> Number:
        if self.steps.order.divides_first:
            return linear(self.as_operand(self.quotient(x, y)))
        return self.quotient(self.as_operand(linear(x)), y)

    def tanh(self, x: Number) -> Number:
        return replace(x, values=self.steps.tanh(x.values), source="stored_scores")

    def tables(self, turn: Rotation) -> tuple[Number, Number]:
        steps, stage, xp = self.steps, "score_accumulation", self.steps.xp
        if turn.table_dtype:
            cos, sin = (Number(steps.array(table), "input", steps) for table in FLOATS.tables(turn))
            return cos, sin
        power = steps.array(np.power(turn.base, turn.exponents))
        exact = steps.array((turn.exponents == 0) & steps.c.exp_of_zero_is_one)
        frequencies = steps.round(power * (1 + xp.where(exact, 0.0, steps.error_of("exp_error", power))), stage)
        angles = steps.round(steps.array(turn.positions[..., None].astype(np.float64)) * frequencies, stage)
        cos, sin = (steps.round(of(angles) + steps.error_of("sine_error", angles), stage) for of in (xp.cos, xp.sin))
        cos, sin = (steps.convert(table, "rotary_tables", stage) for table in (cos, sin))
        return self.spread(cos, 1.0, turn), self.spread(sin, 0.0, turn)

    def spread(self, table: Any, rest: float, turn: Rotation) -> Number:
        """Expand a table [.., S, R/2] of pairs to one of columns; columns that do not turn get ``rest``."""
        stay = self.steps.array(np.full((*table.shape[:-1], turn.columns - turn.turned), rest))
        return Number(self.steps.xp.concatenate([table[..., turn.pair], stay], axis=-1), "rotary_tables", self.steps)

    def swapped(self, x: Number, turn: Rotation) -> Number:
        return replace(x, values=x.values[..., turn.partner] * self.steps.array(turn.sign))

    def exp(self, x: Number) -> Number:
        steps = self.steps
        if steps.is_base2:
            y = steps.xp.exp2(steps.times(x.values, steps.log2e, "score_accumulation"))
        else:
            y = steps.xp.exp(x.values)
        return self.finished(y * (1 + steps.error_of("exp_error", x.values)))

    def capped_exp(self, x: Number) -> Number:
        return self.exp(replace(x, values=self.steps.xp.where(x.values > 0, 0.0, x.values)))

    def gated(self, t: Number, x: Number) -> Number:
        return replace(t, values=self.steps.xp.where(x.values > 0, t.values, 0.0))

    def complement(self, x: Number) -> Number:
        return self.finished(1 - x.values)

    def pairs(self, x: Number, y: Number) -> Number:
        return self.finished(FLOATS.pairs(x.values, y.values))

    def grid(self, s: Number, x: Number, y: Number) -> Number:
        return replace(s, values=FLOATS.grid(s.values, x.values, y.values))

    def listed(self, s: Number) -> Number:
        return replace(s, values=FLOATS.listed(s.values))

    def over_second(self, u: Number, x: Number, y: Number) -> Number:
        return self.summed(by_pair(u.values, x.values, y.values), -2)

    def over_first(self, u: Number, x: Number, y: Number) -> Number:
        return self.summed(by_pair(u.values, x.values, y.values), -3)

    def summed(self, x: np.ndarray, axis: int, source: str = "stored_scores") -> Number:
        """Return sums along an axis, which may be empty, of numbers of a source.

        Results of operations are added as they are; other numbers are first converted to the accumulator's format.
        """
        if not x.shape[axis]:
            return self.stored(x.sum(axis))
        terms = self.steps.xp.moveaxis(x, axis, 0)
        if source != "stored_scores":
            terms = self.steps.convert(terms, "score_accumulation", source)
        return self.stored(self.steps.accumulate(lambda t: terms[t], len(terms), "score_accumulation"))


class Operands:
    """The operands of one call with a score other than q.k: q and k, and the q' and k' made of them."""

    arithmetic: type[MatrixProducts] = MatrixProducts
    execution: type[Execution] = Execution

    #: The operands q' and k' of this call, once :meth:`make` has computed them.
    made: tuple[np.ndarray, np.ndarray] | None = None

    def __init__(self, contract: ResolvedContract, order: Order, q: Any, k: Any, options: Mapping[str, Any]) -> None:
        score = next(name for name in CHOICES if options.get(name) is not None)
        self.score: Score = FEATURE_MAPS[options[score]] if score == "feature_map" else SCORES[score]
        if order.matrix_on == "queries":
            self.score = self.score.otherwise or self.score
        heads = options[score].shape[1] if score == "query_projection" else q.shape[1]
        self.steps, self.group = self.arithmetic(contract, order), heads // k.shape[1]
        #: Options of a call with the operands in place of q and k.
        names = (score, *(row.name for row in parameters(score)))
        self.options = {name: value for name, value in options.items() if name not in names}
        if self.options.get("scale") is None and not OPTIONS[score].divides:
            self.options["scale"] = 1.0
        of_keys = np.repeat(values_of(k), self.group, axis=1)
        of_queries = np.repeat(values_of(q), heads // q.shape[1], axis=1)
        self.q, self.k = self.given(of_queries), self.given(of_keys)
        used = {name: options[name] for name in names if options.get(name) is not None}
        refuse([name for name in used if name in CODED and name not in HANDLES], type(self).__name__)
        self.p: dict[str, Any] = {
            name: self.given(values_of(value)) for name, value in used.items() if OPTIONS[name].tensor is np.float64
        }
        if "feature_map" in used:
            self.options["epsilon"] = used.get("feature_epsilon", 0.0)
        if "rotary" in used:
            aligned = {"causal_alignment": options.get("causal_alignment", "top_left")}
            lengths = {"query_length": q.shape[2], "key_length": k.shape[2], "columns": q.shape[3]}
            used |= {name: values_of(x) for name, x in used.items() if OPTIONS[name].tensor}
            if "rotary_query_positions" not in used and any(options.get(n) is not None for n in LENGTHS):
                found = sequences_of(q.shape[2], k.shape[2], options)
                used["rotary_query_positions"] = found.aligned_keys(q.shape[2], **aligned)
            self.p |= rotations(**lengths, **used, **aligned)

    def given(self, x: np.ndarray) -> Number:
        """Return an input of the call as a number of its own format."""
        return Number(self.steps.array(np.asarray(x, np.float64)), "input", self.steps)

    def __call__(self) -> tuple[np.ndarray, np.ndarray]:
        """Return q' [B, Hq, Sq, ..] and k' [B, Hq, Sk, ..] as they are stored, which both passes read."""
        if self.made is None:
            self.made = self.make()
        return self.made

    @np.errstate(all="ignore")
    def make(self) -> tuple[np.ndarray, np.ndarray]:
        """Compute q' [B, Hq, Sq, ..] and k' [B, Hq, Sk, ..] as they are stored."""
        A = self.execution(self.steps)
        found = self.score.queries.value(A, self.q, self.p), self.score.keys.value(A, self.k, self.p)
        q, k = self.stored(found[0]), self.stored(found[1])
        if self.score.pairs is not None:
            x, y = self.operands(q, k)
            self.options["pair_scores"] = self.score.pairs.value(A, x, y, self.p).values
        return q, k

    def operands(self, *stored: np.ndarray) -> list[Number]:
        """Return operands as formulas read them."""
        return [finite(Number(x, "operands", self.steps)) for x in stored]

    def repeated(self, x: Any) -> np.ndarray:
        """Return the values of a tensor of kv heads for each query head."""
        return np.repeat(values_of(x), self.group, axis=1)

    @np.errstate(all="ignore")
    def backward(self, run: Callable[..., Any], v: Any, *further: Any) -> dict[str, np.ndarray]:
        """Return all gradients by input; ``run`` makes the backward call of the operands.

        ``further`` are the cotangent and the outputs of the forward call. The operands' gradients give those of q, k
        and the parameters.
        """
        dO, *outputs = further
        q, k = self()
        call = run(unrounded(self.steps.c), (q, k, self.repeated(v), *outputs), self.options, dO)
        found, dv = self.pulled(call, q, k)
        return self.finished(found | {"v": self.sum_over_group(dv)})

    def pulled(self, call: Any, q: np.ndarray, k: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return gradients by input except v, that of q for each head; and the gradient of the values of each head."""
        dq, dk, dv, *of_options = call()
        A, of_p = self.execution(self.steps), {}
        if self.score.pairs is not None:
            x, y = self.operands(q, k)
            dS = Number(call.scaled_score_gradient(), "stored_scores", self.steps)
            of_q, of_k, of_p = self.score.pairs.pull(A, x, y, self.p, dS)
            dq, dk = of_q.values, of_k.values
        of_q, of_k = (Number(self.stored_gradient(x), "operands", self.steps) for x in (dq, dk))
        of_q, by_queries = self.score.queries.pull(A, finite(self.q), self.p, of_q)
        of_k, by_keys = self.score.keys.pull(A, finite(self.k), self.p, of_k)
        found = {"q": of_q.values, "k": self.sum_over_group(of_k.values)}
        found |= dict(zip(call.differentiated(self.options)[3:], of_options, strict=True))
        found |= {name: self.over_heads(name, of.values) for name, of in (of_p | by_queries | by_keys).items()}
        return found, dv

    def finished(self, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return gradients in their formats."""
        own = self.options.get("option_dtypes", {})
        convert = self.steps.convert
        return {name: convert(x, own.get(name, "gradients"), "gradient_accumulation") for name, x in found.items()}

    def over_heads(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return the gradient of a parameter, summed over the batch entries and heads that share it."""
        xp = self.steps.xp
        for axis, length in enumerate(self.p[name].values.shape[:2]):
            if length == 1:
                parts = xp.moveaxis(x, axis, 0)
                x = self.steps.accumulate(lambda n, parts=parts: parts[n], len(parts), "gradient_accumulation")
                x = xp.expand_dims(x, axis=axis)
        return x

    def stored(self, x: Number) -> np.ndarray:
        """Return a finished operand as it is stored."""
        return self.steps.convert(x.values, "operands", x.source)

    def stored_gradient(self, x: np.ndarray) -> np.ndarray:
        """Return the gradient of an operand as it is stored."""
        return self.steps.convert(x, "operands", "gradient_accumulation")

    def sum_over_group(self, x: np.ndarray) -> np.ndarray:
        """Return the sum over the query heads that share a kv head."""
        heads = x.reshape(len(x), x.shape[1] // self.group, self.group, *x.shape[2:])
        return self.steps.accumulate(lambda h: heads[:, :, h], self.group, "gradient_accumulation")


def finite(x: Number) -> Number:
    """Return the numbers with NaN and infinities replaced by 0: such numbers are masked everywhere."""
    xp = x.steps.xp
    return replace(x, values=xp.where(xp.isfinite(x.values), x.values, 0.0))


def chooses_score(options: Mapping[str, Any]) -> bool:
    """Return whether a call has another score than the product of q and k."""
    return any(options.get(name) is not None for name in CHOICES)


def unrounded(contract: ResolvedContract) -> ResolvedContract:
    """Return the contract for gradients of operands, which are not rounded to their final format yet."""
    return replace(contract, gradients="float64")
