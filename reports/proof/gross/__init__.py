"""Trials of gross errors: each must be refuted, in every member, dtype, contract, length and size of scores."""
