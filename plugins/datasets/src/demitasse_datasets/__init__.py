"""Samples from arrays, IDX, CIFAR and scikit-learn's digits for Demitasse."""
