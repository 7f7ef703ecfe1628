"""Problems of one batch entry and one head, written as numbers or as rows of numbers."""

from functools import partial

import numpy as np

from attn_spec.problem.problem import Problem


def one_head(q, k, v, **options):
    """Make a problem of one batch entry and one head; in float64, the default, any number is allowed."""
    q, k, v = (np.array(x, dtype=np.float64).reshape(1, 1, len(x), -1) for x in (q, k, v))
    return Problem(q=q, k=k, v=v, **{"dtypes": "float64", **options})


float32_head = partial(one_head, dtypes="float32")
