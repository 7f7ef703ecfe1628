# /// script
# dependencies = ["paddlepaddle==3.3.1"]
# ///
"""paddlepaddle 3.3.1: a scale of 0 is read as no scale.

The docstring of scaled_dot_product_attention says that the scale is 1 / sqrt(head_dim) if it is None. A scale of 0
gives equal scores, and the mean of the values. Exit status 3: the output is another.
"""

import sys

import paddle

q = paddle.to_tensor([[[[2.0]], [[2.0]]]])
v = paddle.to_tensor([[[[1.0]], [[3.0]]]])
k = paddle.to_tensor([[[[0.0]], [[1.0]]]])
out = paddle.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.0)
print("values 1 and 3, a scale of 0:", out.ravel())
sys.exit(0 if abs(float(out.ravel()[0]) - 2.0) < 1e-3 else 3)
