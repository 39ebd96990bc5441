"""swCaffe's processor as a plugin: kernels written for the CPE mesh, which are run and counted here."""
