"""Examinations of kernels: pytest sessions, the processes that they run in, and stored cases that are run again."""
