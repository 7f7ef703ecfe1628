"""Trees of drafts: tokens that a model checks at once, each of which attends to the prefix and to its own ancestors."""

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem import masks
from attn_spec.problem.options import OPTIONS
from attn_spec.problem.patterns import TREES
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import hides_keys, positional
from attn_spec.search.assertions import assert_rows_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import problems
from attn_spec.search.property import attention_property

#: Paths of one tree that are compared with attention of their own.
PATHS = 4
SPECINFER = "Miao et al., SpecInfer (arXiv 2305.09781), tree attention"
#: Lengths of sequences, at whose ends the trees lie.
LENGTHS = ("seqused_q", "seqused_k")


def of_drafts(subject: Subject) -> SearchStrategy[Problem]:
    """Draw problems with a mask, with lengths if the kernel takes them: what else masks keys is left out."""
    crosses = ("cross",) if subject.supports("cross") else ()
    always = [OPTIONS[name] for name in subject.kernel.limits.needed if name in OPTIONS]
    lengths = [name for name in LENGTHS if not any(row.excludes(OPTIONS[name]) for row in always)]
    lengths = lengths if subject.supports(*lengths) else []
    return problems(subject, needs=("mask", *crosses, *lengths), without=("empty", positional, hides_keys))


def with_trees(problem: Problem, trees: list[np.ndarray]) -> Problem:
    """Return the problem under the mask of a tree for each batch entry, whose drafts are its last keys."""
    seen = np.zeros((problem.batch, 1, *problem.score_shape[2:]), dtype=bool)
    for entry, parents in enumerate(trees):
        first = int(problem.end_keys[entry]) - len(parents)
        seen[entry, 0, : len(parents)] = masks.drafts(parents, first, problem.key_length)
    return problem.replace(mask=seen)


@attention_property(
    source=f"{SPECINFER}: a sequence of tokens is a tree without branches",
    hunts="a mask whose columns or bits come in another order, a tree that starts at another key of the cache",
    needs=("mask",),
    problems=of_drafts,
    each_call=True,
)
def test_a_chain_of_drafts_is_causal_attention(subject: Subject, problem: Problem) -> None:
    """Under the mask of a chain the answer is that of causal attention which ends in the corner of each sequence."""
    chains = [TREES["chain"](randomness(problem), int(n)) for n in problem.used_queries]
    causal = problem.replace(mask=None, causal=True, causal_alignment="bottom_right")
    assert_within_bound(subject, causal, subject(with_trees(problem, chains)))


@attention_property(
    source=f"{SPECINFER}: the tree attention of a token is the attention of its path from the root",
    hunts="siblings that see one another, keys before the diagonal seen without a look at the mask, causality instead",
    needs=("mask",),
    problems=of_drafts,
)
def test_each_path_of_a_tree_is_attention_of_its_own(subject: Subject, problem: Problem) -> None:
    """The drafts from a root to a leaf get what they get as a sequence of their own behind the prefix.

    Four paths of each problem are examined.
    """
    rng = randomness(problem)
    trees = [TREES[rng.choice(list(TREES))](rng, int(n)) for n in problem.used_queries]
    drafted = with_trees(problem, trees)
    answer = subject(drafted)
    nodes = [(entry, node) for entry, parents in enumerate(trees) for node in set(range(len(parents))) - set(parents)]
    for entry, leaf in (nodes[place] for place in rng.permutation(len(nodes))[:PATHS]):
        path = np.flatnonzero(masks.ancestors(trees[entry])[leaf])
        first = int(problem.end_keys[entry]) - len(trees[entry])
        keys = np.concatenate([np.arange(max(first, 0)), path + first])
        sequence = drafted.take("B", [entry]).take("Q", path).take("K", keys[keys >= 0])
        own = sequence.replace(mask=None, causal=True, causal_alignment="bottom_right", **dict.fromkeys(LENGTHS))
        assert_rows_within_bound(subject, own, {name: x[entry : entry + 1][:, :, path] for name, x in answer.items()})
