"""Demitasse compared with PyTorch and TensorFlow on ten nets or your own: see README.md."""
