"""Frameworks: the libraries whose tensors kernels take."""
