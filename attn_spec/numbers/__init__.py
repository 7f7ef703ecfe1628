"""Formats, and exact values in them."""
