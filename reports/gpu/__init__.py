"""Kernels of the tree on a GPU: their verdicts, and what they cost beside flash and eager attention of PyTorch."""
