"""The compiled loops; importing a module here imports numba, so only a kernel's bind does."""
