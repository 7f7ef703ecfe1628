"""Bounds of linear attention."""
