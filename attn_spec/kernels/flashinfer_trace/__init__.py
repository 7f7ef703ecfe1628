"""Documents of the FlashInfer Trace schema, by which FlashInfer-Bench exchanges kernels.

A definition is read as the declaration of a kernel, a solution as the kernel, and workloads as shapes to examine.
"""
