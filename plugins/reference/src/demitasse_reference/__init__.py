"""Readable NumPy kernels, the oracle of all others, for Demitasse."""
