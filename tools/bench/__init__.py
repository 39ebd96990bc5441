"""Demitasse beside PyTorch and TensorFlow on six nets: see README.md."""
