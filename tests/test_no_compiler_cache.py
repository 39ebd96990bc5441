"""Where no folder can be written, compiled loops are not kept, and everything computes all the same."""

from __future__ import annotations

import subprocess
import sys

NOWHERE = """
import importlib
import pkgutil
from numba.core import caching, ccallback, dispatcher

class Nowhere(caching.FunctionCache):
    def __init__(self, function):
        raise RuntimeError("cannot cache function: no locator available")

caching.FunctionCache = ccallback.FunctionCache = dispatcher.FunctionCache = Nowhere

packages = ["demitasse_cpu.loops", "demitasse_allreduce.node"]
for package in map(importlib.import_module, packages):
    for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        importlib.import_module(found.name)

import demitasse_cgdp.loops, demitasse_numa.loops, demitasse_parameter_server.loops
import demitasse_striped_io.loops
import numpy as np
from demitasse_cpu.loops.calls import share
from demitasse_cpu.native import Call, at_once
from demitasse_sw26010.model.mesh import COUNTERS, product
from demitasse_sw26010.model.programs import machine_code
from numba import njit

@njit(nogil=True)
def double(x, begin, end):
    for i in range(begin, end):
        x[i] *= 2

x = np.arange(10.0)
at_once([Call(double, (x, 0, 5)), Call(double, (x, 5, 10))])()
assert (x == 2 * np.arange(10.0)).all()
assert share.address
assert machine_code(product)(np.zeros(COUNTERS), 64, 64, 64) == product([0.0] * COUNTERS, 64, 64, 64)
print("right")
"""


def test_loops_are_compiled_where_none_can_be_kept() -> None:
    command = [sys.executable, "-c", NOWHERE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("right\n", 0), done.stderr
