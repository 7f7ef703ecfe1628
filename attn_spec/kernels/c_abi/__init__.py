"""Kernels in shared libraries: C functions that ctypes calls with the tensors of a problem."""
