"""Samples striped over directories, disks and parallel file systems."""
