"""Sound kernels, written the way the world writes them."""
