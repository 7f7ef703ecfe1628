"""What is left of a verdict: failure block, script, provenance, certificate."""
