"""Layers of type Python: runs code that a net's file names."""
