"""The host on which plugins run: its memory, files, threads and what its system reports. No module here
needs the kernel."""
