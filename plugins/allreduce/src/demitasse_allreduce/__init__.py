"""Gradients across processes: collectives as data, over MPI and over a node's shared memory."""

from demitasse_allreduce.call import allreduce

__all__ = ["allreduce"]
