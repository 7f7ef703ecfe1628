"""Sound kernels in great numbers: no answer outside its bound, no false alarm."""
