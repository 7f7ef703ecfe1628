"""Executors of many tasks: this process, several processes, or the workers of a Dask cluster."""
