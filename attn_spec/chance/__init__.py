"""Models of roundings and keep masks by chance, and tests with a stated probability of a false alarm."""
