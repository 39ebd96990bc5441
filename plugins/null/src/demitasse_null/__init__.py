"""A backend that computes nothing, for tests and for measuring overhead."""
