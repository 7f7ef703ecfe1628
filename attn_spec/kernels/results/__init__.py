"""Results of a call: what it must return or write, and what it must leave alone."""
