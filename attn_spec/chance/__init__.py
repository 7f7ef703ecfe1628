"""What roundings and keep masks do by chance: models and tests with a stated probability of a false alarm."""
