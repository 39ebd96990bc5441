"""Gradients of accelerators, added up by the host's processors while backward goes on (CGDP)."""
