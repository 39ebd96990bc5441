"""Kernels, memory and streams of graphics processors."""
