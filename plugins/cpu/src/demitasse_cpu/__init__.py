"""BLAS and numba kernels for Demitasse."""
