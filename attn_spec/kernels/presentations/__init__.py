"""Presentations: how a call hands a problem over, and how its answer is read back."""
