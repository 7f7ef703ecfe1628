"""Calls that append: they write new keys and values to caches, and attend to all of them."""
