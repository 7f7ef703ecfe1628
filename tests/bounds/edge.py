"""The edge of the domain: sizes on both sides of one of its conditions."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Edge(NamedTuple):
    """The edge of the domain: a problem of a size, or a contract of a distance, and the sizes on both sides."""

    make: Callable[[Any], Any]
    contract: dict[str, Any]
    outside: float
    inside: float

    def check(self, what, found):
        """Assert that ``found``, which returns the rows in the domain for a size, has its limit at this edge."""
        assert not found(self.outside).any(), (
            f"{what} may overflow at {self.outside:g}: a condition of domain.py is gone"
        )
        assert found(self.inside).all(), f"{what} fit at {self.inside:g}: a condition of domain.py is too strict"
