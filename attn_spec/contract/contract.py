"""The arithmetic a kernel declares, stage by stage.

A stage names a format, such as ``"float32"``, or one of two words that depend on the problem: ``"input"`` is the dtype
of q, k, v; ``"work"`` is float32, or float64 for float64 inputs. A bound is computed from these fields and the
data only; it holds for every tiling and every order of summation that respects them. ``presets`` names the usual ones.

Where k or v has another dtype than q, ``"input"`` is q's dtype. In ``multiplicands`` it is the narrowest format that
includes all three dtypes: float32 of float32 queries and a bfloat16 cache, tf32 of float16 and bfloat16. So q, k and v
are numbers of one format and enter products exactly, as all theorems for inputs of one dtype assume. A kernel that
rounds queries to the dtype of the cache says ``multiplicands="bfloat16"``. One that computes ``p.to(v.dtype) @ v`` says
``probabilities="bfloat16"``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from numbers import Integral, Real
from typing import Any, ClassVar

from attn_spec.contract.quantisers import Quantiser
from attn_spec.contract.stages import Stage, Stages
from attn_spec.contract.stages import stage as made_stage
from attn_spec.contract.terms import guard, remembered, state, term
from attn_spec.numbers.formats import DTYPES, EIGHT_BITS, FLOATS, FORMATS, OUTPUT_DTYPES, Format, narrowest
from attn_spec.problem.dtypes import input_dtypes


class ContractError(ValueError):
    """A contract that names an unknown preset, stage or format."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The arithmetic of one kernel. Each field is a promise; the defaults are the preset ``fused``."""

    #: Format each factor of q.k and p.v is rounded to on entry to the product ("tf32" for tensor-core tf32). A scale
    #: that multiplies q or k does so before.
    multiplicands: str = "input"
    #: Numbers of that format whose sum stands for one factor: 2 for bf16x3 and 3xTF32, 3 for bf16x6. Of the products
    #: of pieces those are left out whose places add up to this number or more.
    multiplicand_pieces: int = 1
    #: Rounding on entry to a product: "nearest", "toward_zero" (bits are cut), or None: as ``rounding`` says.
    entry_rounding: str | None = None
    #: Rounding of sums in a matrix unit, which multiplies formats of at most 11 bits: "toward_zero" when it aligns a
    #: block of products and the accumulator to the largest and cuts, or None: one by one, as ``rounding`` says.
    matrix_rounding: str | None = "toward_zero"
    #: Products in such a block, at least; 1 is a sum of two numbers, cut to the accumulator's format.
    matrix_block: int = 4
    #: Bits kept below the accumulator's last when a block is aligned; negative when fewer are kept.
    matrix_extra_bits: int = 0
    #: Format of an inner accumulator that is added to the outer one and cleared after every ``inner_terms`` products,
    #: at most; None for no such accumulator.
    inner_accumulation: str | None = None
    inner_terms: int = 128
    #: Format that each product of two numbers is rounded to before its sum, as in ``(q * k).float().sum(-1)`` of
    #: tensors of half, in both passes; None for products that are exact until they are added.
    products: str | None = None
    #: Format the products of q.k are accumulated in.
    score_accumulation: str = "work"
    #: Format scores are kept in between operations, one rounding per operation: scale, softcap, bias and ALiBi, in this
    #: order; where it is as wide as score_accumulation these two, divided by the scale, may be added first.
    stored_scores: str = "work"
    #: Format of the operands of a score other than q.k (``attention.scores``); both passes read the same ones. A result
    #: on the way to them may be stored in it, as frameworks do that evaluate a formula operation by operation.
    operands: str = "input"
    #: Format of the cosines and sines of ``rotary``; their angles are found as q.k is accumulated,
    #: from positions that are exact integers.
    rotary_tables: str = "work"
    #: Factor of ALiBi's slopes: the "distance" of a key from its query; or "positions": its distance from any key,
    #: as where all rows add m j, so that the scores of a row are larger or smaller than they should by one number.
    alibi: str = "positions"
    #: Format in which terms of ALiBi are made before they are added, and slopes and distances for them: "input" of a
    #: matrix that is one of q's dtype, as attn_mask=alibi.to(q.dtype) is.
    alibi_terms: str = "work"
    #: "scores": the scale multiplies q.k. "operands": it may multiply q, or its root q and k, rounded to stored_scores
    #: before entry to the product; with exponent "base2" log2(e), and with a softcap its inverse, may be folded in.
    scale_on: str = "scores"
    #: Tensor that ``q_descale`` and ``k_descale`` multiply: the "scores", and in the backward pass their gradient
    #: before its cast; or the "operands" q and k, which are stored in the format of that stage.
    descale_on: str = "scores"
    #: Tensor that ``v_descale`` multiplies. "output": the finished output if one number serves all keys of a head,
    #: else the probabilities. "probabilities": these before their cast. "operands": v, stored in the format of that
    #: stage.
    value_descale_on: str = "output"
    #: Format of s - max, of the exponentials, of the finished row sum, of the normalization and its reciprocal, and of
    #: what dropout multiplies by 1 / (1 - p), but for normalized probabilities.
    softmax: str = "work"
    #: Format the row sum is accumulated in.
    row_sum: str = "work"
    #: Relative error of one exponential beyond its rounding to ``softmax``, in unit roundoffs of "work".
    exp_error: float = 8.0
    #: True if exp(0) is exactly 1, so that rescaling by an unchanged maximum is exact.
    exp_of_zero_is_one: bool = True
    #: "natural"; "base2": exp2 of arguments multiplied by a rounded log2(e); or "base2_fused": the same, and one fused
    #: operation s c - fl(m c) may overflow where the rounding of m c does, in float32 of a maximum m beyond 1e9.
    exponent: str = "base2"
    #: Error of one logarithm relative to 1 + abs(log), beyond its rounding to ``softmax``, in unit roundoffs of "work".
    log_error: float = 4.0
    #: Absolute error of one tanh, at most 1, beyond its rounding to ``stored_scores``, in unit roundoffs of "work".
    tanh_error: float = 8.0
    #: Error of one cosine or sine of ``rotary``, absolute, beyond its rounding, in unit roundoffs of "work".
    sine_error: float = 8.0
    #: Reference subtracted from the scores of a row: their running "maximum"; "zero"; or "upper_bound": one number per
    #: row, from the maximum up to abs(scale) abs(q) max abs(k) (plus the largest bias, or the softcap if that is less).
    reference: str = "maximum"
    #: Largest distance from the maximum of any other reference, natural units; rows beyond it are not in the domain.
    reference_range: float = 0.0
    #: Largest distance of the reference "maximum" from the running maximum (lazy rescaling), natural units.
    reference_slack: float = 0.0
    #: Reference subtracted from a sink: "maximum", the running maximum, in which the sink takes part; or "keys", the
    #: maximum of the keys alone, so that a sink far above them overflows, and such rows are not in the domain.
    sink_reference: str = "keys"
    #: Format of the probabilities when they enter the product with v.
    probabilities: str = "input"
    #: Factor of the probabilities before their cast, 1 or more: 448.0, or 2.0**8; the output is divided by it. A power
    #: of 2 may be added to exponents of base 2 where normalization comes after the product. The row sum then has it
    #: too, and the log-sum-exp does not.
    probability_scale: float = 1.0
    #: Cast of a probability above the largest number of its format: "saturates" at that number; or "leaves" the format
    #: for an infinity or NaN, so that rows with such a probability are not in the domain.
    overflow: str = "leaves"
    #: "after_product": out = (w @ v) / sum(w). "before_product": out = (w / sum(w)) @ v, where the row sum may be
    #: found tile by tile, but w is not rescaled, and is of the same scores. "every_tile": w is divided by the row sum
    #: so far before its cast, and the output so far rescaled by the ratio of row sums. "by_lse": out = exp(s - LSE) @ v
    #: in a second pass, whose scores may be computed again, of the same operands; where they are stored in a narrower
    #: format than they are accumulated in, they are read again.
    normalize: str = "after_product"
    #: Probabilities that the row sum adds: after their cast ("cast"), before it ("uncast"), or "either".
    row_sum_of: str = "uncast"
    #: Format the products p.v are accumulated in.
    output_accumulation: str = "work"
    #: Dtype of the output, and of its cotangent. Of queries of 8 bits another one must be declared.
    output: str = "input"
    #: Cast of an output, divided by ``o_scale``, above the largest number of its dtype: "saturates" at that number; or
    #: "leaves" the dtype for an infinity or NaN, so that rows with such an output are not in the domain.
    output_overflow: str = "leaves"
    #: Rounding of every operation outside matrix units: "nearest", or "toward_zero" (twice the unit roundoff).
    rounding: str = "nearest"
    #: "flushed": results below the smallest normal of float32, tf32, bfloat16 may become 0. "kept": never.
    subnormals: str = "flushed"
    #: Subnormals of float16: "kept", "flushed_on_entry" to a product (CDNA2 matrix units), or "flushed" everywhere.
    float16_subnormals: str = "kept"
    #: Most terms one partial sum passes through; None is any order at all.
    summation_depth: int | None = None
    #: Smallest number of keys per tile, which bounds the rescalings; 1 is any tiling, None the whole row at once.
    kv_tile: int | None = 16
    #: Format of the log-sum-exp.
    lse: str = "work"
    #: Merges of normalized partial outputs through their rounded log-sum-exps that one key passes, at most: 1 for a
    #: kernel that splits the keys and combines once (split-KV), n - 1 for a ring of n, the depth of a tree. Merging
    #: (m, l, acc) is none.
    lse_merges: int = 0
    #: Formula that merges two outputs: "weighted", a o + b o' with a + b = 1; or "difference", o - b (o - o').
    merging: str = "weighted"
    #: Format in which a partial output, or one merged so far, waits for the next merge.
    partial_outputs: str = "work"
    #: Weights of the backward pass: "recomputed" as exp(s - LSE), of scores that may be computed again; "stored", which
    #: the forward pass divided by their own row sum; or "either". A framework that keeps exp(s - logsumexp(s)) of the
    #: forward pass divides by nothing: its weights are "recomputed". A function that a framework differentiates is
    #: judged by "either" where this says "recomputed".
    backward_weights: str = "recomputed"
    #: Delta that is subtracted from dP: rowsum(dO O) ("output"), rowsum(P dP) ("probabilities"), or "either".
    delta: str = "output"
    #: P that dS = P (dP - delta) reads: after the cast that precedes P^T dO ("cast"), before ("uncast"), or "either".
    score_gradients_of: str = "uncast"
    #: Format dP = dO v^T is kept in, "either" that of stored_scores or of probabilities, whose gradient it is. A
    #: framework that differentiates p.to(v.dtype) @ v keeps both in one, and rounds dO / l to it where weights are
    #: divided by their sum l after that product. A kernel with a backward pass of its own leaves no choice.
    weight_gradients: str = "either"
    #: Format of dS when it enters the products with k and q.
    score_gradients: str = "input"
    #: Format the products of dQ, dK, dV, dBias are accumulated in.
    gradient_accumulation: str = "work"
    #: Format partial sums of gradients are kept in between tiles or heads.
    partial_gradients: str = "work"
    #: Largest number of times that a partial sum is stored in that format before the last rounding.
    gradient_stores: int = 2
    #: Dtype of the gradients of inputs that have no dtype of their own (``Problem.dtypes``).
    gradients: str = "input"
    #: Quantisers of q, k and v, at most one each: what the kernel makes of these tensors before their products.
    #: ``attn-spec explain quantiser`` lists the fields of one.
    quantisers: tuple[Quantiser, ...] = ()
    #: Share of the output, in the 2-norm, that the quantisation error is promised to stay within on usual values; None
    #: for no promise. It is a property of its own, apart from the bound of the kernel's arithmetic.
    quantisation_within: float | None = None
    #: Contracts, any one of which may explain an answer in place of this one.
    alternatives: tuple[Contract, ...] = ()
    #: Words that a field allows in place of those of ``CHOICES``.
    _wider: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __post_init__(self) -> None:
        for name, allowed in (CHOICES | self._wider).items():
            if getattr(self, name) not in allowed:
                raise ContractError(f"contract field {name} must be one of {allowed}, not {getattr(self, name)!r}")
        for name, least in _AT_LEAST.items():
            value, kind = getattr(self, name), Integral if name in _COUNTS else Real
            if value is None and name in _OPTIONAL:
                continue
            if not isinstance(value, kind) or isinstance(value, bool) or not least <= float(value) < math.inf:
                what = "an integer, " if name in _COUNTS else "finite, "
                raise ContractError(f"contract field {name} must be {what}{least} or more, not {value!r}")
        if not isinstance(self.alternatives, tuple) or not all(
            isinstance(contract, Contract) for contract in self.alternatives
        ):
            raise ContractError(f"contract field alternatives must be a tuple of contracts, not {self.alternatives!r}")
        self._check_quantisers()
        if self.reference != "maximum" and not self.reference_range > 0:
            raise ContractError(
                f"contract field reference={self.reference!r} needs reference_range, how far that may lie from the "
                "maximum of a row in natural units: with 0 the contract says nothing of any row but those at 0"
            )
        self._check_together()
        bits = 53 if self.score_accumulation == "float64" else 24
        if not self.exp_error < 2.0**bits:
            raise ContractError(
                f"contract field exp_error must be below 2**{bits}, not {self.exp_error!r}: it counts units of "
                f"2**-{bits}, and of an exponential that is off by 100 % no bound is left"
            )

    def _check_together(self) -> None:
        """Raise :class:`ContractError` for fields that exclude each other."""
        if self.products is not None and self.multiplicand_pieces > 1:
            raise ContractError(
                "contract fields products and multiplicand_pieces exclude each other: products of pieces are made by a "
                "matrix unit, which rounds none of them"
            )
        if self.lse_merges and self.normalize == "by_lse":
            raise ContractError(
                'contract fields lse_merges and normalize="by_lse" exclude each other: outputs are merged where parts '
                "were normalized by log-sum-exps of their own, not by that of the whole row"
            )

    def _check_quantisers(self) -> None:
        """Raise :class:`ContractError` for quantisers of one tensor twice, or beside what no theorem knows."""
        given = self.quantisers if isinstance(self.quantisers, tuple) else (self.quantisers,)
        of = {one.of for one in given if isinstance(one, Quantiser)}
        if given is not self.quantisers or len(of) != len(given):
            raise ContractError(
                "contract field quantisers must be a tuple of quantisers, at most one of each of q, k and v, not "
                f"{self.quantisers!r}"
            )
        rotations = {one.of: one.rotation for one in self.quantisers if one.of != "v"}
        if len({rotations.get(name, (None, ())) for name in "qk"}) > 1:
            raise ContractError(
                "contract field quantisers must rotate q and k alike, with the same signs: the scores of vectors that "
                "are rotated otherwise are others"
            )
        if self.quantisers and self.reference == "upper_bound":
            raise ContractError(
                'contract fields quantisers and reference="upper_bound" exclude each other: no theorem bounds a row by '
                "the lengths of vectors that are quantised"
            )
        if any(other.quantisers != self.quantisers for other in self.alternatives):
            raise ContractError(
                "contract field alternatives has a contract with other quantisers; all of them must have the same, "
                "since the truth is that of the numbers that quantisers leave"
            )

    @property
    def weakness(self) -> str:
        """Return why the contract is weak, so that what it holds says little; empty if it is not."""
        open_ones = [one.of for one in self.quantisers if one.rounding == "either"]
        return f"each code of {', '.join(open_ones)} may be either of two" if open_ones else ""

    def at(self, dtype: str) -> ResolvedContract:
        """Return the contract with ``"input"`` and ``"work"`` replaced by formats for inputs of ``dtype``.

        ``dtype`` is one for q, k and v, or theirs as ``problem.dtypes`` spells them. No operation's result is an
        integer: beside queries of integers "input" is the narrowest float that has them.
        """
        return _at(self, dtype)

    def tiles(self, keys: int) -> int:
        """Most tiles that a row of so many keys is cut into."""
        return 1 if self.kv_tile is None else max(math.ceil(keys / self.kv_tile), 1)

    @property
    def base2(self) -> bool:
        """True where the contract says that the kernel computes exp(x) as exp2(x log2(e))."""
        return self.exponent != "natural"

    @property
    def rounds_scale(self) -> bool:
        """True if a product with the scale of probabilities, or a quotient by it, is rounded: it is no power of 2."""
        return math.frexp(self.probability_scale)[0] != 0.5

    @property
    def exponent_offset(self) -> float:
        """Return the most that is added to exponents for the scale of probabilities, in natural units."""
        in_exponent = self.base2 and self.normalize == "after_product" and not self.rounds_scale
        return math.log(self.probability_scale) if in_exponent else 0.0

    @property
    def reference_distance(self) -> float:
        """Return a bound on the distance of the subtracted reference from the maximum of the scores seen so far."""
        return self.reference_slack if self.reference == "maximum" else self.reference_range


@dataclass(frozen=True, kw_only=True)
class ResolvedContract(Contract):
    """A contract of which every stage names a format: what bounds and executions read. :meth:`Contract.at` makes it."""

    alternatives: tuple[ResolvedContract, ...] = ()
    #: The outputs of the heads of a layer are operands, which may have a format that no tensor has.
    _wider: ClassVar[dict[str, tuple[str, ...]]] = {"output": FLOATS}

    def __post_init__(self) -> None:
        super().__post_init__()
        for stage in STAGES:
            if getattr(self, stage) in ("input", "work"):
                raise ContractError(
                    f"contract field {stage} is {getattr(self, stage)!r}; Contract.at(dtype) resolves it"
                )

    def __hash__(self) -> int:
        """Return the hash of all fields, found once: every cache of what bounds said is keyed by a contract."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(tuple(getattr(self, field.name) for field in fields(self)))

    def __getstate__(self) -> dict[str, Any]:
        """Leave the hash behind: that of a string is another one in each process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def forward_pass(self) -> ResolvedContract:
        """The contract with the same numbers in all fields that the backward pass alone reads."""
        return _of_forward_pass(self)

    def format(self, stage: str) -> Format:
        """Return the format of a stage, or of a format's name; for "either" the widest, which is that of scores."""
        said = stage if stage in FORMATS else getattr(self, stage)
        return FORMATS[self.stored_scores if said == "either" else said]

    @property
    def stages(self) -> Stages:
        """Every stage with its format and its rounding; others while terms are struck."""
        return self._stages if state() is None else _stages(self)

    @cached_property
    def _stages(self) -> Stages:
        return _stages(self)

    def stage(self, name: str) -> Stage:
        """Return the stage of that name, or of the results of a format of that name, as :attr:`stages` has it."""
        if name not in FORMATS:
            return getattr(self.stages, name)
        return made_stage(FORMATS[name], self.direction(name), flushes=self.flushes(FORMATS[name]))

    def direction(self, stage: str) -> str:
        """Return how a result of a stage is rounded, "nearest" or "toward_zero", but for sums in matrix units."""
        entering = self.entry_rounding if stage == "multiplicands" else None
        return term("cutting on entry to a product", entering or self.rounding, self.rounding)

    def flushes(self, form: Format, *, entering: bool = False) -> bool:
        """Return whether a result below the smallest normal number may become 0, also on entry to a product."""
        if form.name == "float16":
            return self.float16_subnormals == "flushed" or guard(
                "flushing on entry to a product", entering and self.float16_subnormals == "flushed_on_entry", False
            )
        wide = form.emin == FORMATS["float32"].emin
        return guard("flushing of formats of float32's range", self.subnormals == "flushed" and wide, False)

    def formats(self, *stages: str) -> list[Format]:
        """Return the formats of stages, or of formats by name; a stage may be absent, as an inner accumulator."""
        return [self.format(stage) for stage in stages if getattr(self, stage, stage) is not None]

    def largest(self, *stages: str) -> float:
        """Return the largest number that all of the stages, or formats by name, can hold."""
        return min(form.largest for form in self.formats(*stages))


@lru_cache(256)
def _at(contract: Contract, dtype: str) -> ResolvedContract:
    """:meth:`Contract.at`, which every call of a kernel asks for."""
    inputs = input_dtypes(dtype)
    of_q = narrowest(inputs[0]).name if FORMATS[inputs[0]].is_integer else inputs[0]
    words = {"input": of_q, "work": "float64" if "float64" in inputs else "float32"}
    values = {field.name: getattr(contract, field.name) for field in fields(Contract)}
    if contract.multiplicands == "input":
        values["multiplicands"] = narrowest(*inputs).name
    if inputs[0] in EIGHT_BITS and contract.output == "input":
        raise ContractError(
            f"contract field output is by default the dtype of q, {inputs[0]}, of 8 bits; declare the output's own"
        )
    if inputs[0] in EIGHT_BITS and contract.gradients == "input":
        values["gradients"] = "work" if contract.output in EIGHT_BITS else contract.output
    values |= {stage: words.get(values[stage], values[stage]) for stage in STAGES}
    alternatives = tuple(other.at(dtype) for other in contract.alternatives)
    return ResolvedContract(**{**values, "alternatives": alternatives})


@lru_cache(64)
def _of_forward_pass(contract: ResolvedContract) -> ResolvedContract:
    """Return a contract without alternatives, whose fields of the backward pass are those of ``BACKWARD``."""
    return _first_of_equals(replace(contract, alternatives=(), **BACKWARD))


@lru_cache(64)
def _first_of_equals(contract: ResolvedContract) -> ResolvedContract:
    """Return one object for equal contracts, which a cache finds without a comparison of their fields."""
    return contract


@remembered(64)
def _stages(contract: ResolvedContract) -> Stages:
    """Return the stages of a contract, without the struck terms."""
    found: dict[str, Any] = dict.fromkeys(STAGES)
    for name in STAGES:
        if getattr(contract, name) is not None:
            form = contract.format(name)
            flushes = contract.flushes(form, entering=name == "multiplicands")
            found[name] = made_stage(form, contract.direction(name), flushes=flushes)
    return Stages(**found)


STAGES = (
    "multiplicands",
    "products",
    "inner_accumulation",
    "score_accumulation",
    "stored_scores",
    "operands",
    "alibi_terms",
    "rotary_tables",
    "softmax",
    "row_sum",
    "probabilities",
    "output_accumulation",
    "output",
    "lse",
    "partial_outputs",
    "weight_gradients",
    "score_gradients",
    "gradient_accumulation",
    "partial_gradients",
    "gradients",
)
#: Words that each field allows that is one of several words.
CHOICES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(STAGES, (*FLOATS, "input", "work")),
    "output": (*OUTPUT_DTYPES, "input", "work"),
    "gradients": (*DTYPES, "input", "work"),
    "weight_gradients": (*FLOATS, "input", "work", "either"),
    **dict.fromkeys(("products", "inner_accumulation"), (*FLOATS, "input", "work", None)),
    "entry_rounding": ("nearest", "toward_zero", None),
    "matrix_rounding": ("toward_zero", None),
    "alibi": ("distance", "positions"),
    "scale_on": ("scores", "operands"),
    "descale_on": ("scores", "operands"),
    "value_descale_on": ("output", "probabilities", "operands"),
    "exponent": ("natural", "base2", "base2_fused"),
    "reference": ("maximum", "zero", "upper_bound"),
    "sink_reference": ("keys", "maximum"),
    "normalize": ("after_product", "before_product", "every_tile", "by_lse"),
    "merging": ("weighted", "difference"),
    **dict.fromkeys(("overflow", "output_overflow"), ("saturates", "leaves")),
    "row_sum_of": ("cast", "uncast", "either"),
    "backward_weights": ("recomputed", "stored", "either"),
    "delta": ("output", "probabilities", "either"),
    "score_gradients_of": ("cast", "uncast", "either"),
    "rounding": ("nearest", "toward_zero"),
    "subnormals": ("flushed", "kept"),
    "float16_subnormals": ("kept", "flushed_on_entry", "flushed"),
    "exp_of_zero_is_one": (True, False),
}
#: Numbers of the fields that the backward pass alone reads, in a contract of which the forward pass is asked.
BACKWARD: dict[str, Any] = {
    **dict.fromkeys(("score_gradients", "gradient_accumulation", "partial_gradients", "gradients"), "float64"),
    "backward_weights": "recomputed",
    "delta": "output",
    "score_gradients_of": "uncast",
    "weight_gradients": "float64",
    "gradient_stores": 2,
}
_OPTIONAL = ("kv_tile", "summation_depth", "quantisation_within")
_COUNTS = (
    *("multiplicand_pieces", "matrix_block", "inner_terms", "matrix_extra_bits", "lse_merges", "gradient_stores"),
    *("kv_tile", "summation_depth"),
)
_AT_LEAST: dict[str, float] = {
    **dict.fromkeys(("multiplicand_pieces", "matrix_block", "inner_terms", "kv_tile", "summation_depth"), 1),
    **dict.fromkeys(("exp_error", "log_error", "tanh_error", "sine_error", "reference_range", "reference_slack"), 0),
    **dict.fromkeys(("lse_merges", "gradient_stores", "quantisation_within"), 0),
    "probability_scale": 1,
    # Fewer would leave an accumulator of float16 no bit at all.
    "matrix_extra_bits": -10,
}
