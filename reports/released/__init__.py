"""Released implementations of attention, each certified in an environment of pinned versions, and their page."""
