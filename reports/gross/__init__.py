"""Whether gross errors are refuted: in every member of the family, dtype, contract, length and size of scores."""
