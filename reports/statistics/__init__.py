"""The statistics that training begins with: measured through kernels, beside exact values."""
