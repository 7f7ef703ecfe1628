"""Judgement of the calls of a function while somebody's own tests or model run: targets, replacement, tallies."""
