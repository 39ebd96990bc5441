"""The choice among kernels by trying them, remembered for the machine."""
