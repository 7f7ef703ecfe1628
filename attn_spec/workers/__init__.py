"""Who runs many tasks: this process, several, or the workers of a Dask cluster."""
