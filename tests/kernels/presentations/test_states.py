"""Merges of attention states: what a call is handed, what it cannot say, and that its answer is that of the problem."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from attn_spec import kernel
from attn_spec.contract.contract import Contract
from attn_spec.emulation.conventions import varied
from attn_spec.emulation.forward import TiledAttention
from attn_spec.emulation.kernels import emulate
from attn_spec.emulation.sound import PRECISE
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.limits import Limits, NotTaken
from attn_spec.kernels.presentations.table import PRESENTATIONS
from attn_spec.kernels.subject import Subject
from attn_spec.numbers import bits
from attn_spec.problem.conventions import Conventions
from attn_spec.problem.problem import Problem
from attn_spec.problem.validation import ProblemError
from attn_spec.search.assertions import judged
from attn_spec.search.drawing.regimes import Recipe
from attn_spec.search.preflight import PlainCallError, preflight
from attn_spec.search.property import Refutation, load_all

SHAPE = {"batch": 4, "query_heads": 2, "kv_heads": 2, "key_length": 3, "value_dim": 5, "states": True}
PROBLEM = Recipe(**SHAPE, bias="normal@BHQK", mask="random@BHQK", seed=3).problem()
PAIR = PROBLEM.take("K", [0, 1])
NAMES = [name for name, row in PRESENTATIONS.items() if "states" in row.carries]
EMPTY = ~PROBLEM.visible[:, :, 0]
BASE_2, NATURAL = {"lse_base": "2"}, Contract(exponent="natural")


def declared(presentation, function=lambda *tensors: tensors, **further):
    return kernel(
        name="merge", framework="numpy", dtypes=("float32",), supports=("lse",), presentation=presentation, **further
    )(function)


def merged(v, s):
    """Merge states along the first axis, in float64."""
    top = s.max(axis=0, initial=-np.inf)
    weights = np.exp(s - np.where(np.isneginf(top), 0.0, top))
    total = weights.sum(axis=0)
    out = (weights[..., None] * np.where(weights[..., None] == 0, 0.0, v)).sum(axis=0)
    with np.errstate(divide="ignore"):
        return out / np.where(total == 0, 1.0, total)[..., None], top + np.log(total)


def right(name):
    """Return a merge in NumPy of calls in a presentation."""

    def stack(v, s):
        return merged(v.swapaxes(0, 1), s.swapaxes(0, 1))

    def pair(v_a, s_a, v_b, s_b):
        return merged(np.stack([v_a, v_b]), np.stack([s_a, s_b]))

    def pair_ht(v_a, s_a, v_b, s_b):
        out, lse = pair(v_a, s_a.T, v_b, s_b.T)
        return out, lse.T

    def listed(v, s, *, indptr):
        parts = [merged(v[a:b], s[a:b]) for a, b in itertools.pairwise(indptr)]
        return np.stack([o for o, _ in parts]), np.stack([lse for _, lse in parts])

    called = {"states": stack, "states_first": merged, "states_pair": pair, "states_pair_ht": pair_ht}

    def rounding(*tensors, **further):
        wide = [x.astype(np.float64) for x in tensors]
        return tuple(x.astype(np.float32) for x in (called | {"states_list": listed})[name](*wide, **further))

    rounding.__wrapped__ = called.get(name, listed)
    return rounding


def test_an_option_says_that_scores_are_biases_alone():
    assert not PROBLEM.q.any()
    assert not PROBLEM.k.any()
    assert PROBLEM.q.shape == (4, 2, 1, 1)
    assert {"states", "bias", "mask"} <= PROBLEM.options()
    assert "dv" not in PROBLEM.options()
    with pytest.raises(ProblemError, match="q and k are 0"):
        PROBLEM.replace(k=np.ones_like(PROBLEM.k))
    assert not PROBLEM.with_inputs(k=np.ones_like(PROBLEM.k)).k.any()


@pytest.mark.parametrize("regime", ["rising_100", "ties", "huge"])
def test_log_sum_exps_are_the_scores_that_a_regime_would_have(regime):
    shape = {**SHAPE, "batch": 1, "regime": regime, "seed": 7}
    plain = Recipe(**{**shape, "states": False}).problem()

    scores = plain.q @ plain.k.swapaxes(-1, -2)

    assert np.allclose(Recipe(**shape).problem().bias, scores, rtol=1e-6)


def test_each_token_and_head_is_given_its_states():
    handed = PRESENTATIONS["states"].handed(PROBLEM).tensors

    assert handed["v"].shape == (4, 3, 2, 5)
    assert (handed["v"][3, 1, 0] == PROBLEM.v[3, 0, 1]).all()
    assert (np.isneginf(handed["s"]) == EMPTY.swapaxes(1, 2)).all()
    assert (handed["s"][~EMPTY.swapaxes(1, 2)] == PROBLEM.bias[:, :, 0].swapaxes(1, 2)[~EMPTY.swapaxes(1, 2)]).all()


def test_a_pair_that_lacks_a_state_has_an_empty_one():
    handed = PRESENTATIONS["states_pair_ht"].handed(PROBLEM.take("K", [0])).tensors

    assert np.isneginf(handed["s_b"]).all()
    assert not handed["v_b"][~np.isneginf(handed["s_a"]).T].any()
    assert handed["s_a"].shape == (2, 4)
    assert handed["v_a"].shape == (4, 2, 5)


def test_both_states_of_a_pair_without_keys_have_one_output():
    """A merge that gives the mean of both is right then, as it is for a problem of one key."""
    problem = PROBLEM.take("K", [0])
    seen = np.zeros(problem.score_shape, dtype=bool)
    seen[1:] = True
    handed = PRESENTATIONS["states_pair_ht"].handed(problem.replace(mask=seen)).tensors

    empty = np.isneginf(handed["s_a"]).T
    assert (handed["v_b"][empty] == handed["v_a"][empty]).all()
    assert not handed["v_b"][~empty].any()
    assert empty[0].all()
    assert not empty[1:].all()


def test_lists_have_the_states_of_each_token_and_poison_behind_them():
    counted = PROBLEM.replace(mask=None, seqused_k=np.array([2, 0, 3, 1]).reshape(4, 1, 1, 1))

    handed = PRESENTATIONS["states_list"].handed(counted, unread=True)

    assert handed.further["indptr"].tolist() == [0, 2, 2, 5, 6]
    assert (handed.tensors["v"][2] == counted.v[2, :, 0]).all()
    assert len(handed.tensors["v"]) > 6
    assert not np.isin(handed.tensors["v"][6:], counted.v[1]).all() or np.isnan(handed.tensors["v"][6:]).all()


def test_an_empty_state_may_be_plus_infinity_only_if_that_is_declared():
    given = {
        choice: Subject(declared("states", conventions={"empty_state": choice}), "float32")
        ._handed(PROBLEM)
        .tensors["s"]
        for choice in ("-inf", "either_inf")
    }

    assert not np.isposinf(given["-inf"]).any()
    assert np.isposinf(given["either_inf"]).any()
    assert (np.isinf(given["either_inf"]) == np.isneginf(given["-inf"])).all()


@pytest.mark.parametrize("name", NAMES)
def test_log_sum_exps_of_base_2_are_handed_over_and_returned(name):
    problem, right_one = PAIR if "pair" in name else PROBLEM, right(name)

    def in_base_2(*tensors, **further):
        natural = [x * np.float32(np.log(2)) if place % 2 else x for place, x in enumerate(tensors)]
        out, lse = right_one(*natural, **further)
        return out, (lse / np.log(2)).astype(np.float32)

    in_base_2.__wrapped__ = right_one.__wrapped__
    subject = Subject(declared(name, in_base_2, contract="fp32", conventions=BASE_2), "float32")
    handed = subject._handed(problem)
    natural = replace(subject, choices={"lse_base": "e"}).presentation.handed(problem)

    for tensor, x in handed.tensors.items():
        if tensor.startswith("s"):
            seen = np.isfinite(natural.tensors[tensor])
            assert x[seen] == pytest.approx(natural.tensors[tensor][seen] / np.log(2), rel=2.0**-23)
    assert not judged(subject, problem, subject(problem)).refuted
    unchanged = Subject(declared(name, right_one, contract="fp32", conventions=BASE_2), "float32")
    assert judged(unchanged, problem, unchanged(problem)).refuted


@pytest.mark.parametrize("name", NAMES)
def test_a_right_merge_is_within_its_bound_and_a_wrong_one_is_not(name):
    problem = PAIR if "pair" in name else PROBLEM
    subject = Subject(declared(name, right(name), contract="fp32"), "float32")
    answer = subject(problem)

    assert not judged(subject, problem, answer).refuted
    assert answer["output"].shape == (4, 2, 1, 5)
    assert judged(subject, problem, answer | {"output": answer["output"] * (1 + 1e-4)}).refuted
    assert judged(subject, problem, answer | {"lse": answer["lse"] + 1e-4}).refuted


@pytest.mark.parametrize("name", NAMES)
def test_executed_arithmetic_merges_states(name):
    counted = (
        PROBLEM.replace(seqused_k=np.array([2, 0, 3, 1]).reshape(4, 1, 1, 1)) if name == "states_list" else PROBLEM
    )
    problem = PAIR if "pair" in name else counted
    declared = {"contract": "fused", "conventions": {"empty_state": "either_inf", "unused": "unread"}}
    subject = Subject(emulate("merge", PRECISE, supports=("lse",), presentation=name, **declared), "float32")

    assert not judged(subject, problem, subject(problem)).refuted


@pytest.mark.parametrize("lse", ["float32", "float16"])
def test_a_merge_of_merges_is_off_by_what_rounding_a_log_sum_exp_does_to_weights(lse):
    """Near 50, float16 has a spacing of 1/32. Parts of other outputs get other weights by it, and their mean moves."""
    narrow = Subject(emulate("merge", replace(PRECISE, lse=lse), presentation="states", supports=("lse",)), "float32")
    problem = Recipe(batch=1, key_length=4, value_dim=1, states=True).problem()
    bias = np.array([50.0, 50.0, 50.01, 50.01]).astype(np.float32).astype(np.float64).reshape(1, 1, 1, 4)
    problem = problem.replace(bias=bias, v=np.array([1.0, 1.0, -1.0, -1.0]).reshape(1, 1, 4, 1))

    load_all()["states.merged_states_merge_again"].check(narrow, problem)


@pytest.mark.parametrize(("dtype", "lse"), [("float32", "float16"), ("bfloat16", "float32")])
def test_a_merge_of_merges_is_off_by_the_roundings_of_both(dtype, lse):
    """Outputs in bfloat16 and log-sum-exps in float16 are rounded twice, so that one rounding does not bound them."""
    executes = replace(PRECISE, lse=lse)
    narrow = Subject(emulate("merge", executes, presentation="states", supports=("lse",), dtypes=(dtype,)), dtype)
    shape = {**SHAPE, "key_length": 4, "value_dim": 8, "dtypes": narrow.dtypes}

    for seed in range(12):
        problem = Recipe(**shape, bias="normal@BHQK", seed=seed).problem()
        load_all()["states.merged_states_merge_again"].check(narrow, problem)


def test_log_sum_exps_are_of_float32_beside_outputs_of_half():
    half = kernel(framework="torch", dtypes=("float16",), presentation="states")(lambda v, s: v[:, 0])

    tensors = Subject(half, "float16")._tensors(Subject(half, "float16")._handed(PROBLEM))

    assert half.option_dtypes == {"bias": "float32"}
    assert [str(x.dtype) for x in tensors.values()] == ["torch.float16", "torch.float32"]


@pytest.mark.parametrize(
    ("declaration", "text"),
    [
        ({"supports": ("scale",)}, "cannot pass scale, since a state has nothing but"),
        ({"supports": ("backward",)}, "cannot pass backward, since no gradients of states"),
        ({"conventions": BASE_2, "contract": NATURAL}, "the contract at float32 counts no such rounding"),
        ({"conventions": BASE_2, "dtypes": ("float64",)}, "base 2 are rounded to float32 .* at float64 counts no such"),
        ({"query_lengths": (4,)}, "query_lengths"),
    ],
)
def test_what_a_merge_cannot_declare(declaration, text):
    with pytest.raises(KernelError, match=text):
        kernel(**{"framework": "numpy", "dtypes": ("float32",), "presentation": "states", **declaration})(merged)


def test_limits_are_within_those_of_a_presentation():
    own = Limits(largest={"K": 5, "B": 7}, always=("bias",), head_dims=(64,))

    within = own.within(PRESENTATIONS["states_pair"].limits)

    assert within.largest == {"K": 2, "B": 7}
    assert within.always == ("bias", "states")
    assert within.query_lengths == (1,)
    assert "head dimensions" in within.refusal(PAIR)
    assert not within.refusal(PAIR.replace(v=np.zeros((4, 2, 2, 64))))
    assert "at most 2" in within.refusal(PROBLEM.replace(v=np.zeros((4, 2, 3, 64))))


def test_a_merge_that_cannot_be_called_is_told_what_it_is_given():
    def wrong(q, k, v):
        raise TypeError("three tensors")

    with pytest.raises(
        PlainCallError, match=r"It is given v of shape \(1, 8, 2, 16\); s of shape \(1, 8, 2\) \(states\)"
    ):
        preflight(declared("states", wrong))


@pytest.mark.parametrize("contract", [PRECISE, replace(PRECISE, reference_slack=5.5)])
@pytest.mark.parametrize("empty_row", ["mean_of_v", "zero", "nan"])
def test_a_token_without_states_has_what_the_convention_on_empty_rows_says(empty_row, contract):
    """The mean of all outputs is NaN, and right, if one is NaN that an empty state has; other tokens keep it out."""
    agreed = Conventions(empty_row=empty_row, masked_nonfinite="excluded")
    merge = emulate(
        "merge",
        contract,
        presentation="states_first",
        supports=("states", "bias", "mask", "cross", "lse"),
        conventions=agreed,
        steps=varied(TiledAttention, agreed),
    )
    nowhere = Recipe(batch=2, key_length=4, head_dim=1, query_length=1, states=True, bias="normal@BHQK").problem()
    seen = np.zeros(nowhere.score_shape, dtype=bool)
    seen[0, ..., 2] = True
    problem = nowhere.replace(mask=seen)
    check = load_all()["states.an_empty_state_takes_no_part"].check

    check(subject := Subject(merge, "float32"), problem)

    def spreading(*tensors, **options):
        out, lse = merge(*tensors, **options)
        return out + 0 * tensors[0].sum(0), lse

    with pytest.raises(Refutation):
        check(replace(subject, kernel=replace(merge, function=spreading)), problem)


def test_json_keeps_states():
    assert Problem.from_json(PROBLEM.to_json()).states
    assert bits.identical(
        Recipe(**SHAPE, bias="normal@BHQK", mask="random@BHQK", seed=3).problem().bias, PROBLEM.bias
    ).all()


def test_a_call_refuses_a_problem_that_it_cannot_pass():
    with pytest.raises(NotTaken, match="cannot pass softcap"):
        PRESENTATIONS["states"].handed(PROBLEM.replace(softcap=2.0))
