"""Data sources for Demitasse: arrays, IDX, CIFAR, image files, databases, HDF5, and others."""
