"""The sum of all ranks on one node, compared with MPICH, Open MPI and gloo: ``python -m
bench_allreduce``."""
