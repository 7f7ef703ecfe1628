"""How far an answer may lie from the truth: contracts, theorems, bounds, statistics."""
