"""Documents packed into one row: each is attention of its own, as if it were a row of a batch."""

import numpy as np
from hypothesis.strategies import SearchStrategy

from attn_spec.kernels.subject import Subject
from attn_spec.problem.problem import Problem
from attn_spec.problem.traits import positional
from attn_spec.search.assertions import assert_rows_within_bound, assert_within_bound
from attn_spec.search.drawing.cotangents import randomness
from attn_spec.search.drawing.strategies import named, problems
from attn_spec.search.property import attention_property

#: Documents of one problem that are compared with attention of their own.
DOCUMENTS = 4
PACKING = "Krell et al., Efficient sequence packing without cross-contamination (arXiv 2107.02027)"
#: Options that give the positions of rotary embedding.
GIVEN = ("rotary_query_positions", "rotary_key_positions")


def packed(subject: Subject, *needs: str) -> SearchStrategy[Problem]:
    """Draw problems of documents in one row, with as many queries as keys and no positions but those of causality.

    Positions that are needed are there too. Some documents lie one behind the other, others are mixed; some queries
    and keys belong to no document.
    """
    masks = named(("documents", "interleaved_documents")).filter(lambda name: name[-3] == "1" and name.endswith("QK"))
    without = ("empty", "cross", lambda row: positional(row) and row.name not in ("causal", *needs))
    return problems(subject, needs=("mask", *needs), without=without, mask=masks)


def of_few_queries(own: Subject) -> str:
    """Return why documents in one row are not asked of a subject; empty if they are."""
    limited = own.kernel.limits.query_lengths is not None
    return "it takes some numbers of queries only, and a document has as many as keys" if limited else ""


def documents(problem: Problem, entry: int) -> list[np.ndarray]:
    """Return the queries of each document of a batch entry, which are its keys too."""
    mask = np.broadcast_to(np.asarray(problem.mask), (problem.batch, 1, *problem.score_shape[2:]))[entry, 0]
    seen = np.unique(mask[mask.any(axis=-1)], axis=0)
    return [np.flatnonzero(keys) for keys in seen]


def some_documents(problem: Problem) -> list[tuple[int, np.ndarray]]:
    """Return some documents, each as a batch entry and the places of its tokens."""
    every = [(entry, places) for entry in range(problem.batch) for places in documents(problem, entry)]
    chosen = randomness(problem).permutation(len(every))[:DOCUMENTS]
    return [every[place] for place in chosen]


def alone(problem: Problem, entry: int, places: np.ndarray) -> Problem:
    """Return the problem of one document, without the mask."""
    return problem.take("B", [entry]).take("Q", places).take("K", places).replace(mask=None)


@attention_property(
    source=f"{PACKING}; a row's result is a function of the keys that it sees",
    hunts="a document that sees the end of the one before, a mask asked once for a tile, mixed documents read as runs",
    needs=("mask",),
    problems=packed,
    not_applicable=of_few_queries,
)
def test_documents_in_one_row_are_each_attention_of_their_own(subject: Subject, problem: Problem) -> None:
    """The rows of a document, among others or alone, are the attention of its queries over its own keys.

    Four documents of each problem are examined. Causality keeps its meaning, since order is kept.
    """
    answer = subject(problem)
    for entry, places in some_documents(problem):
        own = alone(problem, entry, places)
        rows = {name: x[entry : entry + 1][:, :, places] for name, x in answer.items()}
        assert_rows_within_bound(subject, own, rows)
        if not subject.kernel.limits.refusal(own):
            assert_within_bound(subject, own, subject(own))


@attention_property(
    source=f"{PACKING}: positions restart with each document; huggingface/trl#3526",
    hunts="positions counted along the row, a restart that comes one token late, positions of queries alone restarted",
    needs=("mask", "rotary", *GIVEN),
    problems=lambda subject: packed(subject, "rotary", *GIVEN),
    not_applicable=of_few_queries,
)
def test_positions_restart_with_each_document(subject: Subject, problem: Problem) -> None:
    """With positions that restart in each document, its rows are those of the document alone at counted positions."""
    at = np.zeros((problem.batch, problem.key_length), dtype=np.int64)
    for entry in range(problem.batch):
        for places in documents(problem, entry):
            at[entry, places] = np.arange(len(places))
    shapes = {
        "rotary_query_positions": (-1, 1, problem.query_length, 1),
        "rotary_key_positions": (-1, 1, 1, at.shape[1]),
    }
    restarted = problem.replace(**{name: at.reshape(shape) for name, shape in shapes.items()})
    answer = subject(restarted)
    for entry, places in some_documents(problem):
        counted = alone(restarted, entry, places).replace(**dict.fromkeys(GIVEN))
        rows = {name: x[entry : entry + 1][:, :, places] for name, x in answer.items()}
        assert_rows_within_bound(subject, counted, rows)
