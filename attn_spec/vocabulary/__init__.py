"""The words of the suite: each explained by the text that stands beside what it names."""
