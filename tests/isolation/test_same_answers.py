"""A kernel in a process of its own gives what it gives here, bit for bit, and is given the same."""

import functools
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from attn_spec.isolation import foreign
from attn_spec.isolation.foreign import found
from attn_spec.kernels.dropping import dropping
from attn_spec.kernels.kernel import KernelError
from attn_spec.kernels.presentations import memory
from attn_spec.kernels.resolve import resolve
from attn_spec.kernels.subject import Subject
from attn_spec.problem.options import OPTIONS
from attn_spec.search.plain_calls import plain

NUMPY, TORCH = (str(Path(__file__).with_name(f"spying_{kind}.py")) for kind in ("numpy", "torch"))
#: With a backward function of its own, differentiated by PyTorch, built for each signature, writing into a tensor that
#: it is given, one head at a time, with an argument that turns an option off.
OWN = ("built", "writing", "one_head", "causal_by_default")
SPECS = ("numpy_tiled", "torch_eager", *(f"{NUMPY}:{name}" for name in OWN), f"{TORCH}:weights")

isolated = functools.cache(foreign.isolated)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.fixture(scope="module", params=SPECS, ids=lambda spec: spec.rpartition(":")[2])
def both(request):
    """Return a subject here, and its twin in a process of its own."""
    return [Subject(kernel, "float32") for kernel in (resolve(request.param), isolated(request.param))]


def test_the_declaration_is_the_same(both):
    here, there = (subject.kernel for subject in both)
    fields = ("name", "dtypes", "contract", "supports", "conventions", "limits", "devices", "presentation", "digest")
    fields += ("when_off", "backward_limits", "forward_only")
    assert [getattr(there, name) for name in fields] == [getattr(here, name) for name in fields]
    facts = [[(p.name, p.kind, p.default) for p in kernel.parameters.values()] for kernel in (there, here)]
    assert facts[0] == facts[1]
    assert there.isolated
    assert not here.isolated


def test_answers_and_gradients_are_the_same(both):
    here, there = both
    problem = plain(here.kernel, "float32")
    asked = [name for name in ("causal", "mask", "bias", "softcap") if here.supports(name)]
    problem = problem.replace(**{name: OPTIONS[name].plain(problem.lengths) for name in asked if OPTIONS[name].plain})
    assert_same(there(problem), here(problem))
    if here.supports("backward"):
        dO = np.random.default_rng(0).integers(-4, 5, problem.output_shape) / 8
        for passes in (1, 2):
            pairs = [Subject(x.kernel, "float32", passes=passes).both_passes(problem, dO) for x in both]
            for one, other in zip(*pairs, strict=True):
                assert_same(one, other)
    if "autograd" in here.framework.abilities:
        assert_same(there.recorded(problem), here.recorded(problem))


def of_equal_rows(problem):
    equal = {name: np.broadcast_to(x[:1, :1, :1, :1], x.shape) for name, x in (("q", problem.q), ("k", problem.k))}
    return problem.replace(**equal, v=np.full(problem.v.shape, 0.5))


WAYS = (memory.swapped, memory.sliced, memory.expanded_whole, partial(memory.far_apart, axis=2))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("way", WAYS, ids=["swapped", "sliced", "expanded", "far_apart"])
def test_tensors_lie_in_memory_as_they_do_here(kind, way):
    spec = f"{NUMPY if kind == 'numpy' else TORCH}:memory"
    seen = []
    for kernel in (resolve(spec), isolated(spec)):
        subject = Subject(kernel, "float32")
        problem = of_equal_rows(plain(kernel, "float32"))
        seen.append(subject(problem, arrange=way)["output"].ravel()[1:4].tolist())  # there is one batch entry
    assert seen[0] == seen[1]
    assert seen[1] != subject(problem)["output"].ravel()[1:4].tolist() or way is memory.sliced  # NaN lies around that


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_buffers_are_used_again_where_they_are_here(kind):
    spec = f"{NUMPY if kind == 'numpy' else TORCH}:memory"
    subject = Subject(foreign.isolated(spec), "float32")  # which no other test has called before
    problem = plain(subject.kernel, "float32")
    again = memory.in_the_same_place(tensors=3)
    assert [subject(problem, arrange=again)["output"].ravel()[0] for _ in range(3)] == [0, 1, 1]


def test_freed_memory_is_filled_where_the_kernel_runs():
    subject = Subject(isolated(f"{NUMPY}:unwritten"), "float32")
    problem = plain(subject.kernel, "float32")
    shape = problem.output_shape
    assert np.isnan(subject(problem, arrange=partial(memory.after_freed_nan, shapes=[shape]))["output"]).any()


def test_a_kernel_that_drops_is_asked_to():
    subject = Subject(isolated("numpy_dropout"), "float32")
    problem = plain(subject.kernel, "float32")
    first, second = (dropping(subject, 0.5, 3)(problem)["output"] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (first != subject(problem)["output"]).any()


def test_who_has_a_process_of_its_own():
    assert not found("numpy_naive").isolated
    assert not found("attn_spec.implementations.numpy_naive:attention").isolated
    assert not found("definition:200").isolated
    assert found(f"{NUMPY}:built").isolated
    assert not found(f"{NUMPY}:built", "never").isolated
    with pytest.raises(KernelError, match="no kernel is called 'nothing'"):
        found("nothing")
    with pytest.raises(KernelError, match="runs in this process, whose memory has no limit of its own"):
        found("numpy_naive", memory=1.0)


def test_a_module_is_found_where_this_process_finds_it(folder, monkeypatch):
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    (folder / "pack" / "inner.py").write_text("def attention(q, k, v):\n    return q\n")
    made = isolated("pack.inner:attention")
    assert (made.name, made.declared, made.source) == ("inner", False, str(folder / "pack" / "inner.py"))
    with pytest.raises(KernelError, match=r"pack\.other does not import: ModuleNotFoundError"):
        isolated("pack.other:attention")
    with pytest.raises(KernelError, match=r"gone\.py does not exist \(looked in"):
        isolated("gone.py:attention")
