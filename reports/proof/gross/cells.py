"""The cells of the table: a problem of a member at a length and a size of scores, a contract, and a gross error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from attn_spec.contract.presets import PRESETS, UNDECLARED
from attn_spec.judgement.power import Answer, Planting, judged, planted, right_answer
from attn_spec.numbers import bits
from attn_spec.problem.conventions import DEFAULTS
from attn_spec.problem.problem import Problem
from attn_spec.search.drawing.regimes import Recipe

#: Options that make a problem one of each member.
MEMBERS: dict[str, dict[str, Any]] = {
    "dot": {},
    "causal": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"causal": True, "window": (5, 0), "causal_alignment": "bottom_right"},
    "softcap": {"softcap": 30.0},
    "bias": {"bias": "normal@BHQK"},
    "ALiBi": {"alibi_slopes": "geometric@1H11"},
    "dropout": {"dropout_keep": "most@BHQK", "dropout_p": 0.25},
    "grouped": {"query_heads": 4},
    "bilinear": {"score_weight": "normal@1HDD"},
    "additive": {
        "score_vector": "normal@1H1A",
        "score_key_weight": "normal@1HAD",
        "score_query_weight": "normal@1HAD",
        "score_width": 64,
    },
    "cosine": {"score_gamma": "ten@1111"},
    "rotary": {"rotary": "half"},
    "layer": {f"{name}_projection": f"normal@1H{axes}" for name, axes in
              (("query", "AD"), ("key", "AD"), ("value", "UV"), ("output", "OU"))}
    | {"score_width": 64, "head_value_dim": 64, "output_width": 64},
    "linear, elu": {"feature_map": "elu_plus_one"},
    "linear, relu": {"feature_map": "relu"},
    "linear, exp": {"feature_map": "exp"},
}  # fmt: skip
#: Names of the members that are a layer and a linear attention.
LAYER, LINEAR = "layer", "linear"
DTYPES = ("float64", "float32", "float16", "bfloat16")
LENGTHS = (1, 2, 16, 128, 1024, 4096)
#: Factors of q and k, both N(0, 1): scores grow by their squares.
SIZES = (1.0, 2.0, 4.0, 8.0)
CONTRACTS = (None, "fp32", "fused", "eager")
#: Queries of a problem, and of long ones, and the width of heads.
MOST_QUERIES, WIDTH = 16, 64
#: Beginnings of the names of planted errors that are gross: not a few keys of many, nor a small share of a number.
GROSS = (
    *("zeros", "the mean of the values", "the values", "the next row", "without a scale", "another kv head"),
    *("a key lost at the start", "a key lost at the end", "dq ", "dk ", "dv "),
)
#: Number of keys above which one lost key is no gross error.
FEW_KEYS = 16
GRADIENTS = ("dq", "dk", "dv")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One answer and its judgement."""

    member: str
    dtype: str
    keys: int
    size: float
    #: A preset's name; None of an undeclared kernel.
    contract: str | None
    #: The error in words; "right" of the right answer.
    error: str
    refuted: bool
    #: Elements that nothing was said of.
    silent: int
    ratio: float
    one: Planting = field(repr=False)
    answer: Answer = field(repr=False)

    @property
    def accepted(self) -> bool:
        """Return whether an error passed, all of it judged."""
        return not self.refuted and not self.silent

    def __str__(self) -> str:
        contract = self.contract or "undeclared"
        return f"{self.member}, {self.dtype}, {self.keys} keys, size {self.size:g}, {contract}: {self.error}"


def cells(
    members: Sequence[str] = tuple(MEMBERS),
    dtypes: Sequence[str] = DTYPES,
    lengths: Sequence[int] = LENGTHS,
    sizes: Sequence[float] = SIZES,
    contracts: Sequence[str | None] = CONTRACTS,
    *,
    backward: bool,
) -> Iterator[Cell]:
    """Yield the right answer and the wrong ones of each problem, under each contract."""
    for member in members:
        for dtype in dtypes:
            for keys in lengths:
                for size in sizes:
                    where = {"member": member, "dtype": dtype, "keys": keys, "size": size}
                    yield from _of_problem(problem_of(member, dtype, keys, size), contracts, where, backward=backward)


def problem_of(member: str, dtype: str, keys: int, size: float) -> Problem:
    """Make a problem: q and k are N(0, 1) times ``size``; two kv heads; as many queries as keys up to MOST_QUERIES."""
    options = MEMBERS[member]
    return Recipe(
        **{
            "dtypes": dtype,
            "query_heads": 2,
            "kv_heads": 2,
            "query_length": min(keys, MOST_QUERIES),
            "key_length": keys,
            "head_dim": WIDTH,
            "value_dim": WIDTH,
            "size": size,
            "seed": keys,
        }
        | options
    ).problem()


def _of_problem(
    problem: Problem, contracts: Sequence[str | None], where: dict[str, Any], *, backward: bool
) -> Iterator[Cell]:
    dO = bits.nearest(np.random.default_rng(0).standard_normal(problem.output_shape), problem.dtype)
    given: dict[str, Any] = {"cotangent": dO, "gradients": GRADIENTS} if backward else {}
    for name in contracts:
        contract = (UNDECLARED if name is None else PRESETS[name]).at(problem.dtype)
        one = Planting(problem=problem, contract=contract, conventions=DEFAULTS, **given)
        for words, answer in (("right", right_answer(one)), *_gross(one)):
            judgement = judged(one, contract, answer)
            read = replace(one, contract=judgement.contract)
            found = {"refuted": judgement.refuted, "silent": judgement.silent, "ratio": judgement.ratio}
            yield Cell(contract=name, error=words, one=read, answer=answer, **found, **where)


def _gross(one: Planting) -> Iterator[tuple[str, Answer]]:
    few = one.problem.key_length <= FEW_KEYS
    for words, answer in planted(one):
        if words.startswith(GROSS) and (few or not words.startswith("a key lost")):
            yield words, answer
    for name, right in right_answer(one).items():
        yield f"NaN for {name}", right_answer(one) | {name: np.full(right.shape, np.nan)}
