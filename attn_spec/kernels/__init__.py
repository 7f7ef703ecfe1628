"""The kernel door: what is declared, how a name finds a kernel, how it is called."""
