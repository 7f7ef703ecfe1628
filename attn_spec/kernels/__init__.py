"""Kernels: the declaration of a kernel, its look-up by name, and calls of it."""
