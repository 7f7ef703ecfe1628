"""Pages of reference, from the registries: words, contracts, conventions, commands, exit codes, certificate, API."""
