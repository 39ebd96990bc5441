"""A core group as a programming model: the mesh, its LDM, DMA, register communication, and time."""
