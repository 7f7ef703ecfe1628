"""Correct kernels with one documented bug put in."""
