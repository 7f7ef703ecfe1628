"""Bounds of gradients."""
