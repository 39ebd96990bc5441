"""The compiled loops. Importing a module of this package imports numba, so only a kernel's bind does
it."""
