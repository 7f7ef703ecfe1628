"""Packed and paged calls: sequences lie in buffers of slots, and integers beside these say where."""
