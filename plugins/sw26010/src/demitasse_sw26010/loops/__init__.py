"""Programs of the mesh. Each counts what it does, and does it only if ``touch`` is set."""
