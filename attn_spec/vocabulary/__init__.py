"""The words of the suite, each explained by the comment or docstring beside what it names."""
