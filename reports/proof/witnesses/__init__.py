"""For every term of a theorem, an attack that leaves the bound without it."""
