"""A task of a real sweep that waits until a test says go."""

from attn_spec.reports.proof.validation.bounds import searched

from tests.workers.held_tasks import note


def held_search(name, dtype, folder):
    """Run a chunk of the validation of bounds, once the test says go."""
    note(f"{name} {dtype}", folder)
    return searched("forward", name, dtype, 6, 0)
