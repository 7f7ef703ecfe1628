"""Experiments that infer a kernel's arithmetic and conventions from its answers."""
