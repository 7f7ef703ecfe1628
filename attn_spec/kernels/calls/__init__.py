"""Calls of attention in a user's test: the words of the call, read as a problem."""
