"""Search for problems that refute a kernel: properties, strategies, verdicts."""
