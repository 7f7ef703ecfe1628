"""Kernels, one file each: every one is an example of how to plug in your own."""
