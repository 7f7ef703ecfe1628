"""Problems of attention: one concrete input with its options, and the keys that each query sees."""
