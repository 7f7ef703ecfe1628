"""What the answers of a kernel tell of its arithmetic."""
