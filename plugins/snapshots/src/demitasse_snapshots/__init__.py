"""Checksummed msgpack snapshots for Demitasse."""
