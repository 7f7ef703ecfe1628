"""The arithmetic that a kernel declares: contracts, stages, presets, readings, and names for terms of bounds."""
