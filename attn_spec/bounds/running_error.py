"""The operations of ``attention.arithmetic`` with a running error bound under a contract (Higham, section 3.3).

Every number carries its float64 value, an error within which a kernel's number lies from the truth, and a size: the
sum of the sizes of its terms. The roundings of a sum are relative to its partial sums, and so to that size, in any
order. The result of an operation, and what is stored of it, is one number: it is rounded relative to itself, at most
|value| + error, and a factor of a product has no other size. So a formula stands for one order of products; a score
that kernels evaluate in several has a row for each (``scores.Score.otherwise``). An operation is rounded in the
accumulator's format and stored as scores are. The error is infinite where an operation could overflow, or divide by
what may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from attn_spec.attention.arithmetic import FLOATS, as_pairs
from attn_spec.attention.rotations import Rotation
from attn_spec.contract.contract import ResolvedContract
from attn_spec.contract.products import (
    number_of_products,
    rounding_on_entry,
    roundings_of_sum,
    skipped_pieces,
    sum_underflow,
)
from attn_spec.contract.roundoff import elementary_error, gamma
from attn_spec.contract.stages import Rounding
from attn_spec.contract.terms import count, stands, term, times
from attn_spec.numbers.formats import FORMATS, Format


def operation(contract: ResolvedContract, roundings: int = 1, stores: int = 1) -> Rounding:
    """Return the rounding of so many steps in the accumulator of scores, then stores in the format of scores."""
    work, stored = contract.stages.score_accumulation, contract.stages.stored_scores
    relative = gamma(
        (work.u, term("the roundings of an operation", roundings)),
        (stored.of(work.format).u, term("the store of an operation", stores)),
    )
    return Rounding(
        float(relative),
        term("underflow of an operation", times("underflow of every operation", roundings) * work.eta)
        + term("underflow of the store of an operation", times("underflow of every store", stores) * stored.eta),
    )


@dataclass(frozen=True, eq=False)
class RowErrors:
    """Numbers that are (1 + g)(value + a), with one g for all of a row: bounds on |a|, and on |g|, [.., rows, 1]."""

    own: np.ndarray
    common: np.ndarray

    def of_result(self, contract: ResolvedContract, value: np.ndarray) -> RowErrors:
        """After the rounding of an operation and its store."""
        rounding = operation(contract)
        return self.rounded(value, term("the rounding of each number of a vector", rounding.u), rounding.eta)

    def rounded(self, value: np.ndarray, u: float, eta: float) -> RowErrors:
        """(1 + g)(v + a)(1 + d) + e = (1 + g)((v + a)(1 + d) + e / (1 + g)), with |d| <= u and |e| <= eta."""
        least = np.where(self.common < 1, 1 - self.common, 0.0)
        own = (
            term("the errors of factors of a vector", self.own)
            + u * (np.abs(value) + term("errors in the rounding of each number of a vector", self.own))
            + term(
                "underflow of each number of a vector",
                times("roundings make underflow of each number of a vector grow", 1 + u) * eta / least,
            )
        )
        return replace(self, own=np.where(least > 0, own, np.inf))


@dataclass(frozen=True, eq=False)
class Approximation:
    """Numbers [.., rows, columns] of a kernel: value, size and error, each a float64 array."""

    value: np.ndarray
    size: np.ndarray
    error: np.ndarray
    #: Format in which the numbers are stored.
    form: Format
    contract: ResolvedContract
    #: The error once more, where a part of it is common to a row.
    rows: RowErrors | None = None

    def changed(self, change: Callable[[np.ndarray], np.ndarray]) -> Approximation:
        """Return these numbers in other places, or sums of them without a rounding."""
        value, size, error = map(change, (self.value, self.size, self.error))
        return Approximation(value, size, error, self.form, self.contract)

    @property
    def largest(self) -> np.ndarray:
        """The largest that the numbers themselves may be."""
        return np.abs(self.value) + self.error

    def __mul__(self, other: Approximation) -> Approximation:
        value, of_self = self.value * other.value, np.abs(self.value)
        size, error, is_given = np.abs(value), of_self * other.error, not self.error.any()
        if not is_given:
            error += self.error * other.largest
        found = finished(self.contract, value, size, error, held=size)
        if (rows := other.rows) is None or not is_given:
            return found
        multiplied = replace(rows, own=times("gamma in the errors of each number of a vector", of_self) * rows.own)
        return replace(found, rows=multiplied.of_result(self.contract, value))

    def __add__(self, other: Approximation) -> Approximation:
        return finished(
            self.contract,
            self.value + other.value,
            self.size + other.size,
            term("errors of a summand", self.error) + other.error,
        )

    def __sub__(self, other: Approximation) -> Approximation:
        value, size = self.value - other.value, self.size + other.size
        return finished(self.contract, value, size, self.error + other.error)

    def __truediv__(self, other: Approximation) -> Approximation:
        return RunningErrors(self.contract).quotient(self, other)


def given(contract: ResolvedContract, x: np.ndarray, form: Format) -> Approximation:
    """Numbers that a kernel is given."""
    return Approximation(x, np.abs(x), np.zeros(x.shape), form, contract)


@np.errstate(all="ignore")
def finished(
    contract: ResolvedContract,
    value: np.ndarray,
    size: np.ndarray,
    error: np.ndarray,
    *,
    roundings: int = 1,
    stores: int = 1,
    held: np.ndarray | None = None,
) -> Approximation:
    """Return the result of an operation: its own roundings are added to ``error``, the error from its operands.

    Numbers of the size ``held`` are rounded and stored; without it, the result alone, which is |value| + ``error``.
    """
    rounding = operation(contract, roundings, stores)
    rounded = (np.abs(value) if held is None else held) + term("errors in the roundings of an operation", error)
    error = (
        error
        + rounding.u * rounded
        + times("roundings make underflow of an operation grow", 1 + rounding.u) * rounding.eta
    )
    error = _where_it_fits(
        size + error, error, contract.largest("products", "score_accumulation", "stored_scores", "inner_accumulation")
    )
    return Approximation(value, size, error, contract.stages.stored_scores.format, contract)


def _where_it_fits(size: np.ndarray, error: np.ndarray, largest: float) -> np.ndarray:
    """Return the errors of numbers of a size, infinite for numbers beyond the largest."""
    return error if size.max(initial=0.0) <= largest else np.where(size <= largest, error, np.inf)


def _through(x: np.ndarray, y: np.ndarray) -> np.ndarray | float:
    """Return the product of errors and sizes; 0 if the errors are 0."""
    return x @ y if x.any() and y.any() else 0.0


def stored(x: Approximation, stage: str = "operands") -> Approximation:
    """Return a finished operand, or another stage, rounded to its format: one number, even if it was a sum of parts."""
    kept = x.contract.stage(stage)
    cast = kept.of(x.form)
    itself = np.abs(x.value)
    error = (
        x.error
        + term("the cast of an operand", cast.u * (itself + term("errors in the cast of an operand", x.error)))
        + term("underflow of an operand", kept.eta)
    )
    largest = itself + error
    rows = (
        None
        if x.rows is None
        else x.rows.rounded(x.value, term("the cast of an operand with a part in common", cast.u), kept.eta)
    )
    error = _where_it_fits(largest, error, x.contract.largest(stage, "multiplicands"))
    return Approximation(x.value, np.minimum(x.size, largest), error, kept.format, x.contract, rows)


class RunningErrors:
    """The operations under a resolved contract."""

    def __init__(self, contract: ResolvedContract) -> None:
        self.contract = contract

    def given(self, x: np.ndarray) -> Approximation:
        """Real numbers, of which each operation rounds its own."""
        return given(self.contract, x, FORMATS["float64"])

    def slope_of_tanh(self, s: Approximation, y: Approximation, c: Approximation) -> Approximation:
        del y
        t = self.tanh(s / c)
        return self.complement(t * t)

    def product(self, x: Approximation, y: Approximation) -> Approximation:
        """Return the product of operands with errors, by the theorem of ``product_bounds.dot_product_error``.

        Nothing is known of a product with a factor that may overflow on entry.
        """
        contract, n = self.contract, x.value.shape[-1]
        of_x, of_y = rounding_on_entry(contract, x.form), rounding_on_entry(contract, y.form)
        factors = roundings_of_sum(contract, "score_accumulation", n, blocks=math.ceil(n / contract.matrix_block))
        G = gamma(
            (of_x.u, count("entry of x to a product", 1)),
            (of_y.u, count("entry of y to a product", 1)),
            (skipped_pieces(contract, x.form, y.form), count("pieces left out of a product", 1)),
            *term("sums of a product", factors, ()),
        )
        size = np.abs(x.value) @ np.abs(y.value)
        error = term("errors of y in a product", _through(np.abs(x.value), y.error)) + term(
            "errors of x in a product",
            _through(x.error, term("errors of x and y, multiplied", y.largest, np.abs(y.value))),
        )
        rows, columns = (
            term("errors in underflow of y on entry", x.largest, np.abs(x.value)).sum(-1, keepdims=True),
            term("errors in underflow of x on entry", y.largest, np.abs(y.value)).sum(-2, keepdims=True),
        )
        tiny = (
            term("underflow of x on entry", of_x.eta * columns)
            + term("underflow of y on entry", of_y.eta * rows)
            + term("underflow of x and y on entry", n * of_x.eta * of_y.eta)
        )
        tiny = tiny + term(
            "underflow of sums of a product",
            count("several underflows of sums of a product", 2)
            * times("underflow of every sum of a product", number_of_products(contract, n))
            * sum_underflow(contract, "score_accumulation"),
        )
        error = (
            error
            + term("roundings of a product", G * (size + term("errors in roundings of a product", error)))
            + term("underflow of a product", times("roundings make underflow of a product grow", 1 + G) * tiny)
        )
        enter = self._enters(x).all(-1, keepdims=True) & self._enters(y).all(-2, keepdims=True)
        error = np.where(enter, error, np.inf)
        return finished(contract, x.value @ y.value, size, error, roundings=0)

    def _enters(self, x: Approximation) -> np.ndarray:
        """Return where a factor fits the format of multiplicands, as all numbers of a narrower range do."""
        largest = self.contract.largest("multiplicands")
        return (x.form.largest <= largest) | (x.largest < largest)

    def as_operand(self, x: Approximation) -> Approximation:
        """Return x as stored in the format of operands, as a framework does that evaluates operation by operation."""
        return term("a result that is stored before it goes on", stored(x), x)

    def shifted(self, y: Approximation, b: Approximation, x: Approximation) -> Approximation:
        """Return y + b, where the sums of y may begin with b, so that b passes the n additions of their terms.

        Before, b enters the accumulator, which is the one rounding, and the one underflow, of y + b. What the format of
        scores does not hold of b may be rounded to it first, as of a bias of scores.
        """
        contract, n = self.contract, x.value.shape[-1]
        loaded = contract.stages.stored_scores.of(b.form)
        G = gamma(
            (loaded.u, count("a bias that is rounded first", 1)),
            *term(
                "roundings of sums that begin with a bias",
                roundings_of_sum(contract, "score_accumulation", n, blocks=math.ceil(n / contract.matrix_block)),
                (),
            ),
        )
        return y + replace(
            b,
            error=b.error
            + term(
                "sums that begin with a bias",
                G * (b.size + term("errors of a bias in roundings of sums that begin with it", b.error)),
            )
            + term(
                "underflow of a bias that is rounded first",
                times("roundings make underflow of a bias grow", 1 + G) * loaded.eta,
            ),
        )

    def transposed(self, x: Approximation) -> Approximation:
        return x.changed(lambda part: part.swapaxes(-1, -2))

    def total(self, x: Approximation) -> Approximation:
        """Return the sum over the last axis, in any order."""
        return self.summed(x.changed(lambda part: part.sum(axis=-1, keepdims=True)), x.value.shape[-1])

    def summed(self, x: Approximation, terms: int) -> Approximation:
        """Return x, sums of ``terms`` terms that enter the accumulator, with one rounding less than there are terms."""
        contract, added = self.contract, max(terms - 1, 0)
        enters, work = contract.stages.score_accumulation.of(x.form), contract.stages.score_accumulation
        error = (
            x.error
            + term(
                "terms that enter an accumulator",
                enters.u * (x.size + term("errors of what enters an accumulator", x.error)),
            )
            + term(
                "underflow of terms that enter an accumulator",
                times("underflow of every term that enters an accumulator", terms) * enters.eta,
            )
        )
        G = gamma((work.u, term("sums of rows", term("several roundings of sums of rows", added, min(added, 1)))))
        error = (
            error
            + G * (x.size + term("errors in sums of rows", error))
            + term(
                "underflow of sums of rows",
                times("roundings make underflow of sums of rows grow", 1 + G)
                * times("underflow of every sum of rows", added)
                * work.eta,
            )
        )
        return finished(contract, x.value, x.size, error, roundings=0)

    @np.errstate(all="ignore")
    def root(self, x: Approximation) -> Approximation:
        """|sqrt(x + e) - sqrt(x)| <= sqrt(x) - sqrt(x - |e|), and <= sqrt(|e|); its inverse is rounded as well."""
        value, least = np.sqrt(x.value), np.sqrt(np.maximum(x.value - x.error, 0.0))
        error = np.fmin(np.sqrt(x.error), np.where(x.error == 0, 0.0, x.error / (value + least)))
        return finished(self.contract, value, value, error, roundings=2, stores=2)

    @np.errstate(all="ignore")
    def quotient(self, x: Approximation, y: Approximation) -> Approximation:
        """(e_x + |x / y| e_y) / (|y| - e_y), by division or by the inverse of y, of x or of each of its terms.

        The error of y, and of its inverse, is common to all that it divides, of which more is said where x is given.
        """
        least = np.abs(y.value) - y.error
        value = np.where((x.value == 0) & (y.value == 0), 0.0, x.value / y.value)
        size = np.where(x.size == 0, 0.0, x.size / np.abs(y.value))
        error = (x.error + size * y.error) / least
        tiny = self.contract.stages.score_accumulation.eta + self.contract.stages.stored_scores.eta
        found = np.where(least > 0, error + 2 * x.size * tiny, np.inf)
        held = size if stands("terms that are divided one by one") else None
        found = finished(self.contract, value, size, found, roundings=3, stores=2, held=held)
        if y.value.shape[-1] != 1 or x.error.any():
            return found
        return replace(found, rows=self._divided_rows(y, value))

    @np.errstate(all="ignore")
    def linear_quotient(
        self, linear: Callable[[Approximation], Approximation], x: Approximation, y: Approximation
    ) -> Approximation:
        """Return the quotient with the larger error of two orders; it is infinite where one of them may overflow.

        1 / y^ = (1 + h) / y has one h for all of a row, which is a factor of what is linear in its quotients. Their
        underflows are divided by 1 + h.
        """
        last = self.quotient(self.as_operand(linear(x)), y)
        exact = replace(y, error=np.zeros(y.error.shape), rows=None)
        first = linear(self.as_operand(self.quotient(x, exact)))
        h = y.error / (np.abs(y.value) - y.error)
        error = term("the error of a norm that divides first", h * np.abs(first.value)) + first.error * times(
            "the errors of what is divided first, multiplied", (1 + h) / (1 - h)
        )
        error = np.where(2 * y.error < np.abs(y.value), error, np.inf)  # h < 1
        largest = np.maximum(last.error, error)
        return replace(last, error=term("a quotient before what is linear in it", largest, last.error))

    @np.errstate(all="ignore")
    def _divided_rows(self, y: Approximation, value: np.ndarray) -> RowErrors:
        """x / (y (1 + h)): all of a row is divided by one number, or multiplied by its rounded inverse."""
        contract, rounding = self.contract, operation(self.contract)
        of_inverse = term("the rounding of an inverse, common to a vector", rounding.u) + term(
            "underflow of the inverse of a norm", rounding.eta * y.largest
        )
        of_y = y.error / (np.abs(y.value) - y.error)
        common = (
            term("the error of a norm, common to a vector", of_y)
            + term("the inverse of a norm, common to a vector", of_inverse)
            + term("the errors of a norm and of its inverse, multiplied", of_y * of_inverse)
        )
        common = np.where(y.error < np.abs(y.value), common, np.inf)
        return RowErrors(np.zeros(value.shape), common).of_result(contract, value)

    @np.errstate(all="ignore")
    def tanh(self, x: Approximation) -> Approximation:
        """Return the tanh of x: an error e of x costs at most e times the steepest slope, and at most 2."""
        value, least = np.tanh(x.value), np.maximum(np.abs(x.value) - x.error, 0.0)
        error = np.minimum(x.error * np.cosh(np.minimum(least, 300.0)) ** -2.0, 2.0)
        error = np.where(np.isnan(error), np.inf, error + elementary_error(self.contract, "tanh_error"))
        return finished(self.contract, value, np.abs(value), error)

    @np.errstate(all="ignore")
    def exp(self, x: Approximation) -> Approximation:
        """Return the exponential of x: an error of x is the logarithm of a factor; base 2 rounds x log2(e) too."""
        value = np.exp(x.value)
        argument = x.error + gamma((self.contract.stages.score_accumulation.u, 3)) * (np.abs(x.value) + x.error)
        error = value * np.expm1(x.error if not self.contract.base2 else argument)
        return finished(self.contract, value, value, error + elementary_error(self.contract, "exp_error") * value)

    def capped_exp(self, x: Approximation) -> Approximation:
        """exp(min(x, 0)), which may be expm1(min(x, 0)) + 1: its error is then one of 1."""
        found = self.exp(x.changed(lambda part: np.minimum(part, 0.0)))
        one = np.ones(x.value.shape)
        sum_ = finished(self.contract, one, one, elementary_error(self.contract, "exp_error") * one, roundings=2)
        return replace(found, size=one, error=np.maximum(found.error, sum_.error))

    def gated(self, t: Approximation, x: Approximation) -> Approximation:
        """t where x > 0, else 0; x is given, so its sign is known."""
        return t.changed(lambda part: np.where(x.value > 0, part, 0.0))

    @np.errstate(all="ignore")
    def tables(self, turn: Rotation) -> tuple[Approximation, Approximation]:
        """Return cos and sin of theta = position base^e, e = -2m / R; their errors do not exceed the error of theta.

        theta (1 + d): see :meth:`_power_error`; the product is one more rounding. Positions are integers, and enter
        as they are. Cosines and sines of tables that a kernel is given have no error.
        """
        if turn.table_dtype:
            cos, sin = (given(self.contract, table, FORMATS[turn.table_dtype]) for table in FLOATS.tables(turn))
            return cos, sin
        contract, work = self.contract, self.contract.stages.score_accumulation
        d = self._power_error(turn)
        # A product with 1 is exact, unless the position is no number of the format.
        multiplied = (d > 0) | (
            np.abs(turn.positions[..., None]) > 2.0**contract.stages.score_accumulation.format.precision
        )
        d = np.where(multiplied, d + work.u * (1 + d), d)
        angles = np.abs(turn.positions[..., None]) * np.power(turn.base, turn.exponents)
        error = np.minimum(angles * d + elementary_error(contract, "sine_error"), 2.0)
        error = np.where(
            angles * (1 + d) < contract.largest("score_accumulation"),
            error,
            term("angles that overflow have no bound", np.inf, error),
        )
        off, turned = turn.spread(error, 0.0), turn.spread(np.ones(error.shape), 0.0)
        cos, sin = (self._table(of, off, turned) for of in FLOATS.tables(turn))
        return cos, sin

    def _table(self, exact: np.ndarray, off: np.ndarray, turned: np.ndarray) -> Approximation:
        """Cosines or sines that are ``off``, rounded and stored; those of columns that stay are constants."""
        contract, work = self.contract, self.contract.stages.score_accumulation
        stored = contract.stages.rotary_tables.of(contract.stages.score_accumulation.format)
        G, tiny = gamma((work.u, 1), (stored.u, count("the store of a table", 1))), work.eta + stored.eta
        error = off + turned * (
            G * (term("the size of a cosine", np.abs(exact)) + term("errors of a cosine in its rounding", off))
            + term("underflow of a cosine", times("roundings make underflow of a cosine grow", 1 + G) * tiny)
        )
        return Approximation(exact, np.abs(exact), error, contract.stages.rotary_tables.format, contract)

    def _power_error(self, turn: Rotation) -> np.ndarray:
        """d of each power base^e (1 + d), [R/2], which may be exp(e log base), or the reciprocal of base^-e.

        The base is rounded, its logarithm off by ``log_error`` relative to 1 + |log| and rounded; 1 / R, e and the
        product with the logarithm are rounded. So the exponent is off by |e| ((1 + G) w + G |log base|), with w the
        error of the logarithm before it is rounded and G that of four roundings. The exponential has its own error, and
        is rounded, and so is the reciprocal. base^0 is exp(0).

        All that may be formed lies between the base and its reciprocal. Both must be normal numbers of the format, else
        d is infinite: no power of a base of 0 or infinity is right, but perhaps the first.
        """
        contract, work = self.contract, self.contract.stages.score_accumulation
        e, log, G = np.abs(turn.exponents), abs(math.log(turn.base)), gamma((work.u, 4))
        of_base = -math.log1p(-work.u)
        of_log = of_base + elementary_error(contract, "log_error") * (1 + log + of_base)
        of_power = e * ((1 + G) * of_log + G * log)
        d = np.expm1(of_power + math.log1p(elementary_error(contract, "exp_error")) + np.log1p(gamma((work.u, 2))))
        if contract.exp_of_zero_is_one:
            d = np.where(e == 0, 0.0, d)
        form, most = contract.stages.score_accumulation.format, log + math.log1p(d.max(initial=0.0))
        fits = most <= min(math.log(form.largest), -math.log(form.smallest_normal))
        return d if fits else np.full(d.shape, np.inf)

    def swapped(self, x: Approximation, turn: Rotation) -> Approximation:
        value, size, error = turn.swapped(x.value), x.size[..., turn.partner], x.error[..., turn.partner]
        return Approximation(value, size, error, x.form, x.contract)

    def complement(self, x: Approximation) -> Approximation:
        return finished(self.contract, 1 - x.value, 1 + x.size, x.error)

    def pairs(self, x: Approximation, y: Approximation) -> Approximation:
        first, second = x.changed(lambda part: part[..., :, None, :]), y.changed(lambda part: part[..., None, :, :])
        return (first + second).changed(as_pairs)

    def grid(self, s: Approximation, x: Approximation, y: Approximation) -> Approximation:
        return s.changed(lambda part: FLOATS.grid(part, x.value, y.value))

    def listed(self, s: Approximation) -> Approximation:
        return s.changed(FLOATS.listed)

    def over_second(self, u: Approximation, x: Approximation, y: Approximation) -> Approximation:
        return self.summed(u.changed(lambda part: FLOATS.over_second(part, x.value, y.value)), y.value.shape[-2])

    def over_first(self, u: Approximation, x: Approximation, y: Approximation) -> Approximation:
        return self.summed(u.changed(lambda part: FLOATS.over_first(part, x.value, y.value)), x.value.shape[-2])
