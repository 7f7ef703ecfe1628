"""The properties of attention kernels: one file for each family, one function for each statement."""
