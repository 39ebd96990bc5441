"""Programs of the mesh, compiled: each counts what it does, and does it when ``touch`` is set."""
