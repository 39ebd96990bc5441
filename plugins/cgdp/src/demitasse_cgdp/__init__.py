"""CPU-GPU data parallelism: the host's processors sum accelerators' gradients during backward (CGDP)."""
