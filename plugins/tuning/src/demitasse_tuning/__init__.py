"""Chooses among kernels by trying them, and remembers the choice for the machine."""
