"""Nets from and to ONNX."""
