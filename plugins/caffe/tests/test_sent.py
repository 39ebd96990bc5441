"""Solvers and nets are values: they can be copied, and sent to processes that have not imported anything
yet."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demitasse import NetDefinition, Solver
from demitasse_caffe.plugin import model_reader

NET = """
name: "sent"
layer { name: "data" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" param { lr_mult: 0 }
  inner_product_param { num_output: 4 weight_filler { type: "gaussian" std: 0.1 } } }
layer { name: "own" type: "Squash" bottom: "ip" top: "own"
  squash_param { width: 2.5 names: "a" names: "b" } }
"""
SOLVER = 'net: "net.prototxt"\nbase_lr: 0.1\nmomentum: 0.9\nmax_iter: 100\n'
POLICIES = [
    'lr_policy: "fixed"',
    'lr_policy: "step" gamma: 0.1 stepsize: 3',
    'lr_policy: "inv" gamma: 0.1 power: 0.75 warmup_iter: 4 warmup_start_lr: 0.01',
    'lr_policy: "multistep" gamma: 0.1 stepvalue: 3 stepvalue: 9',
]
TYPES: dict[str, Any] = {
    "Squash": SimpleNamespace(name="Squash", parameters={"width": 1.0, "names": ("",), "deep": True})
}


def solver(folder: Path, policy: str) -> Solver:
    (folder / "net.prototxt").write_text(NET)
    (folder / "solver.prototxt").write_text(SOLVER + policy)
    reader = model_reader(folder / "solver.prototxt", TYPES)
    assert reader is not None
    return reader.solver()


@pytest.mark.parametrize("policy", POLICIES)
def test_a_copy_of_a_solver_is_equal_and_apart(tmp_path: Path, policy: str) -> None:
    made = solver(tmp_path, policy)
    sent = pickle.loads(pickle.dumps(made))  # noqa: S301  what this test has made itself
    for other in (copy.copy(made), copy.deepcopy(made), sent):
        assert other == made
        assert [other.rate(i) for i in range(12)] == [made.rate(i) for i in range(12)]
        assert other.record == made.record
    assert sent.train.layers[1].parameters is not made.train.layers[1].parameters
    assert sent.train.layers[2].parameters == {"width": 2.5, "names": ("a", "b"), "deep": True}


def test_a_net_that_is_sent_is_read_where_nothing_was_imported(tmp_path: Path) -> None:
    net: NetDefinition = solver(tmp_path, POLICIES[0]).train
    (tmp_path / "net.pickle").write_bytes(pickle.dumps(net))
    program = (
        "import pickle, sys; net = pickle.load(open(sys.argv[1], 'rb')); ip = net.layers[1].parameters; "
        "print(net.name, ip.inner_product_param.num_output, ip.param[0].lr_mult, "
        "ip.inner_product_param.weight_filler.HasField('mean'), net.layers[2].parameters['width'])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "net.pickle")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sent", "4", "0.0", "False", "2.5"]
