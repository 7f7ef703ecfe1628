"""Floating-point formats, and exact values in them."""
