"""What attention is asked: one concrete input with its options, and which keys a query sees."""
