"""The code of truth, bounds and judgement itself, mutated."""
