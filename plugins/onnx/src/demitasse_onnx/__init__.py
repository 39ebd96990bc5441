"""Import of nets from ONNX, and export to it."""
