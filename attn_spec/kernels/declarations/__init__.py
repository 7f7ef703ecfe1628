"""Declarations of kernels: the decorator, signatures of libraries, and the checks of both."""
