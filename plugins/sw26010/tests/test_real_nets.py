"""Nets that others wrote are planned for a core group: no kernel takes more LDM than there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import (
    DemitasseError,
    Level,
    Machine,
    MemorySpace,
    PlanError,
    RandomStream,
    compose,
)
from demitasse_sw26010.allocator import Ddr3Allocator
from demitasse_sw26010.explanation import explain_plan
from demitasse_sw26010.model.figures import LDM_BYTES

DATA = Path(os.environ.get("DEMITASSE_SHARED", Path(__file__).parents[4] / "shared")) / "data"
PLUGINS = ("caffe", "training", "datasets", "sw26010", "snapshots")


def one_number(shape: Any, dtype: str) -> Any:
    """An array of which all elements are one: nets are planned here, not run."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), tuple(shape), (0,) * len(tuple(shape)))


class NoMemory:
    """A block that takes none."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        return one_number(shape, dtype)

    def close(self) -> None:
        """Nothing was taken."""


@pytest.mark.slow
def test_planned_nets_keep_within_ldm(monkeypatch: pytest.MonkeyPatch) -> None:
    files = [
        path for path in sorted((DATA / "prototxt").rglob("*.prototxt")) if "solver" not in path.name
    ]
    if not files:
        pytest.skip(f"no nets under {DATA}; DEMITASSE_SHARED names the folder with data/prototxt")
    monkeypatch.setattr(Ddr3Allocator, "allocate", lambda self, nbytes: NoMemory(nbytes))
    for draw in ("uniform", "normal"):
        monkeypatch.setattr(
            RandomStream, draw, lambda self, shape, *limits: one_number(shape, self.dtype)
        )
    level = Level("core_group", memory=(MemorySpace("ddr3"),), kernels="sw26010")
    planned, unserved = 0, []
    with compose(Machine("mesh", (level,), PLUGINS, fingerprint="any")) as runtime:
        for path in files:
            try:
                net = runtime.net(path)
            except PlanError as error:
                unserved.append(str(error))
                continue
            except DemitasseError:
                continue  # no data here, another format, layers that nobody knows
            planned += 1
            for _, report in explain_plan(net.plan):
                assert sum(nbytes for _, nbytes in report.ldm) <= LDM_BYTES
    assert planned >= 10
    assert all("no composed plugin computes" in message for message in unserved)
