"""The mutation score of the suite, beside that of the rules in use."""
