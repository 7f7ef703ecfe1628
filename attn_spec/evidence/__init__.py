"""The evidence for a verdict: failure block, script, provenance, certificate."""

#: Longest line of a text that is shown.
WIDTH = 120
