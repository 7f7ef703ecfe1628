"""Bounds of multi-head layers."""
