"""Descriptions: one with all that one may have, a cluster for simulation, those that are shipped."""

from __future__ import annotations

from pathlib import Path

from demitasse import Machine, load_machine

TAIHULIGHT = """\
schema  = 1
name    = "taihulight"
plugins = ["caffe", "datasets", "sw26010", "allreduce", "striped_io"]

[[level]]
name = "supernode"
count = 160
link = { latency = "1 us", bandwidth = "12 GB/s", oversubscription = 4, source = "paper" }

[[level]]
name = "node"
count = 256
workers = "mpi"
link = { latency = "1 us", bandwidth = "12 GB/s", source = "paper" }
sync = { plugin = "allreduce", algorithm = "recursive-halving-doubling", ranks = "round-robin" }

[[level]]
name = "core_group"
count = 4
workers = "threads"
memory = [{ space = "ddr3", capacity = "8 GiB", bandwidth = "28 GB/s", source = "paper" }]
sync = { plugin = "sw26010", scheme = "handshake" }

[[level]]
name = "cpe"
count = 64
mesh = [8, 8]
memory = [{ space = "ldm", capacity = "64 KiB", source = "vendor" }]
peak = "11.6 GFLOP/s"
kernels = "sw26010"
"""

NESTED = """
[[level]]
name = "node"
count = 4
workers = "mpi"
link = { latency = "1 us", bandwidth = "1 GB/s", source = "assumed" }
sync = { plugin = "simulator", algorithm = "binomial" }

[[level]]
name = "core"
count = 2
workers = "threads"
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
peak = "100 GFLOP/s"
sync = { plugin = "reference" }
"""

RACKS = """
[[level]]
name = "rack"
count = 2
link = { latency = "2 us", bandwidth = "10 GB/s", oversubscription = 4, source = "assumed" }

[[level]]
name = "node"
count = 8
workers = "mpi"
link = { latency = "1 us", bandwidth = "10 GB/s", source = "assumed" }
memory = [{ space = "host", capacity = "1 GB", bandwidth = "10 GB/s", source = "assumed" }]
peak = "100 GFLOP/s"
sync = { plugin = "simulator", %s }
"""
"""The levels of a cluster, but for how it synchronises."""

HWDESC = Path(__file__).parents[1] / "hwdesc"


def read(folder: Path, text: str) -> Machine:
    """The machine of a description's text."""
    path = folder / "machine.toml"
    path.write_text(text, encoding="utf-8")
    return load_machine(path)
