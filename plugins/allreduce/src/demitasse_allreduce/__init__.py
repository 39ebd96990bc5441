"""Gradients across processes: collectives as data, over MPI and over a node's shared memory."""

from demitasse_allreduce.call import allreduce, shared_zeros

__all__ = ["allreduce", "shared_zeros"]
