"""swCaffe's processor as a plugin: kernels written for the CPE mesh, run here and counted."""
