"""Checks of a kernel before the search: a kernel that expects other calls than those of its declaration."""
