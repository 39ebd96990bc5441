"""Run in a guest: trains a small net on four solvers and writes where its pages lie. Its arguments
are a hardware description, or ``auto``, and the name of the file to write."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import numpy as np

import demitasse
from demitasse_numa.machine import this_machine
from demitasse_numa.report import placement, process_pages

NET = """
name: "small"
layer { name: "numbers" type: "Data" top: "data" top: "label"
        data_param { source: "given by the program" batch_size: 64 } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
        convolution_param { num_output: 16 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
        pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "pool1" top: "ip1"
        inner_product_param { num_output: 256 weight_filler { type: "xavier" } } }
layer { name: "relu2" type: "ReLU" bottom: "ip1" top: "ip1" }
layer { name: "ip2" type: "InnerProduct" bottom: "ip1" top: "ip2"
        inner_product_param { num_output: 10 weight_filler { type: "xavier" } } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip2" bottom: "label" top: "loss" }
"""
SOLVER = """
base_lr: 0.05 momentum: 0.9 lr_policy: "fixed" max_iter: 4 random_seed: 7 snapshot_after_train: false
"""
ITERATIONS = 4


def main(description: str, name: str = "result.json") -> None:
    """Train, find the pages, and write the result to the file ``name``."""
    results = Path(os.environ["NUMALAB_RESULTS"])
    net = results / f"{name}.net.prototxt"
    net.write_text(NET, encoding="utf-8")
    solver = results / f"{name}.solver.prototxt"
    solver.write_text(f'net: "{net}"\n{SOLVER}', encoding="utf-8")
    random = np.random.default_rng(3)
    data = {
        "data": random.normal(size=(128, 3, 16, 16)).astype(np.float32),
        "label": random.integers(0, 10, 128).astype(np.float32),
    }
    machine = this_machine()
    names = ["caffe", "training", "datasets", "reference", "snapshots", "numa", "system"]
    with demitasse.compose(description, names) as runtime:
        trainer = runtime.trainer(solver, data={"train": data})
        loss = trainer.step(ITERATIONS).loss
        found = placement(trainer.arrays(), machine)
        bound = {
            thread.name: sorted(os.sched_getaffinity(thread.native_id))
            for thread in threading.enumerate()
            if thread.native_id is not None
        }
        digest = float(np.sum(trainer.net.params["ip1"][0], dtype=np.float64))
    answer = {
        **found.to_dict(),
        "workers_there": trainer.workers,
        "loss": loss,
        "digest": digest,
        "threads": bound,
        "topology": str(machine),
        "hwloc_agrees": this_machine("files").domains == this_machine("auto").domains,
        "process": {str(node): count for node, count in process_pages().items()},
    }
    (results / name).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
