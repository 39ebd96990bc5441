"""The sum of all ranks on one node beside MPICH, Open MPI and gloo: ``python -m bench_allreduce``."""
