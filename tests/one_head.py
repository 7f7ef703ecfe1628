"""Problems of one batch entry and one head, written as rows of numbers."""

import numpy as np

from attn_spec.problem.problem import Problem


def one_head(q, k, v, **options):
    """A problem of one batch entry and one head from rows of numbers, in float64 so that any number is allowed."""
    q, k, v = (np.array(x, dtype=np.float64)[None, None] for x in (q, k, v))
    return Problem(q=q, k=k, v=v, **{"dtype": "float64", **options})
