"""A layer type SoftCap for Demitasse."""
