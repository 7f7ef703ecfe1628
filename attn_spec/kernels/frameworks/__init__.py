"""Libraries of tensors, a file each, that kernels take: found by the entry points ``attn_spec.frameworks``."""
