"""Programs of the mesh: each counts what it does, and does it when ``touch`` is set."""
