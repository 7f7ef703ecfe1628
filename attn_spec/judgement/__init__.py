"""An answer against the truth: the oracle, and errors as ratios to the bound."""
