"""What plugins have of the host that they run on: memory, files, what its system says of it. No module
needs the kernel."""
