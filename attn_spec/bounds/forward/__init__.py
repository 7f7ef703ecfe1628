"""Bounds of outputs and of log-sum-exps."""
