"""Readable NumPy kernels for Demitasse, with which all other kernels are compared."""
