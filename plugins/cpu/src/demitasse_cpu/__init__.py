"""Compiled kernels and host memory for Demitasse."""
