"""The accept rules and inputs of other suites."""
