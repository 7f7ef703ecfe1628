"""Attacks on the bounds: every rounding chosen for the worst."""
