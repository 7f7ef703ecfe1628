"""Pages of reference, from the registries: words of the suite, commands, exit codes, certificate, API, mutants."""
