"""Properties, and the search for a problem that refutes one."""
