"""Proof that the suite works: known bugs, random sound kernels, other suites, and mutants of its own code."""
