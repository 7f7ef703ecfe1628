"""The evidence for a verdict: failure block, script, provenance, certificate."""
