"""A backend that computes nothing, to test and to measure overhead."""
