"""The numeric error report."""
