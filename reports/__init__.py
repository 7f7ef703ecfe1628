"""Numeric error reports, the validation of the bounds, and the zoo of emulated and wrong kernels."""
