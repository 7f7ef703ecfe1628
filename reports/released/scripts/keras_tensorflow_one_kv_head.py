# /// script
# dependencies = ["keras==3.15.1", "tensorflow-cpu==2.21.0"]
# ///
"""keras 3.15.1 on TensorFlow: dot_product_attention raises for one kv head and several query heads.

Its docstring says that multi-query attention is performed if the keys have one head. Exit status 3: the call raises.
"""

import os
import sys

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras

try:
    out = keras.ops.dot_product_attention(keras.ops.ones((1, 1, 2, 1)), *(2 * [keras.ops.ones((1, 1, 1, 1))]))
except Exception as error:
    print(f"two query heads and one kv head: {type(error).__name__}: {error}")
    sys.exit(3)
print("two query heads and one kv head:", out)
