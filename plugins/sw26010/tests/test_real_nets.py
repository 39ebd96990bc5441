"""Nets by other authors are planned for a core group, and no kernel needs more LDM than there is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from real_files import DATA

from demitasse import (
    DemitasseError,
    Level,
    Machine,
    MemorySpace,
    NetDefinition,
    Plan,
    PlanError,
    RandomStream,
    Runtime,
    Solver,
    compose,
)
from demitasse_sw26010.allocator import Ddr3Allocator
from demitasse_sw26010.kernels.program import Binder
from demitasse_sw26010.model.figures import LDM_BYTES

PLUGINS = ("caffe", "training", "datasets", "sw26010", "snapshots")


def one_number(shape: Any, dtype: str) -> Any:
    """Return an array whose elements are all the same one, because nets are planned here and not run."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), tuple(shape), (0,) * len(tuple(shape)))


class NoMemory:
    """A block that takes no memory."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def view(self, offset: int, shape: Sequence[int], dtype: str) -> Any:
        return one_number(shape, dtype)

    def close(self) -> None:
        """Do nothing: no memory was taken."""


SHAPES = ((3, 32, 32), (1, 28, 28), (2, 28, 28), (3, 224, 224), (3, 227, 227), (4,), (1, 64, 64))
"""Shapes of samples, tried in turn if a file does not give one."""

FIELDS = {"Data": "", "ImageData": "", "WindowData": "", "MemoryData": "", "HDF5Data": "tops"}
"""Layer types that read samples, and where the names of their fields are, if these are not ``data`` and
``label``."""

LABELS = ("label", "sim", "clip", "cont", "target")

WITHOUT = {"gather", "pooling_regions", "unpooling"}
"""Operations of real nets for which a core group has no kernel."""


def stand_ins(net: NetDefinition) -> Iterator[dict[str, Any] | None]:
    """Yield samples of all shapes that a net may take, made of a single number, because their contents
    are not read."""
    reading = [layer for layer in net.layers if layer.type in FIELDS]
    if not reading:
        yield None
        return
    asked = [layer.parameters.transform_param.crop_size for layer in reading]
    crop = next(filter(None, asked), 0)
    memory = [x.parameters.memory_data_param for x in reading if x.type == "MemoryData"]
    fixed = [(3, crop, crop)] if crop else [(m.channels, m.height, m.width) for m in memory]
    names = {n for x in reading for n in (x.tops if FIELDS[x.type] else ("data", "label"))}
    for shape in fixed or SHAPES:
        yield {
            name: one_number((4096,) if name.startswith(LABELS) else (4096, *shape), "float32")
            for name in names
        }


def planned(runtime: Runtime, net: NetDefinition) -> Plan:
    """Return the plan of a net, with its backward pass if it has a loss. Raises the last error."""
    last: DemitasseError | None = None
    for samples in stand_ins(net):
        data = {net.phase: samples} if samples else None
        try:
            if net.phase == "train" and samples and any("Loss" in x.type for x in net.layers):
                solver = Solver(net, (), "momentum_update", {}, lambda iteration: 0.0, 1)
                with runtime.trainer(solver, data=data) as trainer:
                    return cast(Plan, trainer.plan)
            return cast(Plan, runtime.net(net, phase=net.phase, data=data).plan)
        except DemitasseError as error:
            last = error if last is None or isinstance(error, PlanError) else last
    assert last is not None
    raise last


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["train", "test"])
def test_planned_nets_keep_within_ldm(
    phase: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    plans, unserved = 0, []
    with compose(Machine("mesh", (level,), PLUGINS, fingerprint="any")) as runtime:
        for number, path in enumerate(files):
            # Means are files that are not here; the shape of the samples from which they are subtracted
            # is known.
            text = re.sub(r'mean_file\s*:\s*"[^"]*"', "", path.read_text("latin-1"))
            copy = tmp_path / str(number) / path.name
            copy.parent.mkdir()
            copy.write_text(text, "utf-8")
            try:
                plan = planned(runtime, runtime.read(copy).net(phase))
            except PlanError as error:
                unserved.append(str(error))
                continue
            except DemitasseError:
                continue  # another format, unknown layers, or a phase that the net is not for
            plans += 1
            for entry in plan.entries:
                if isinstance(binder := entry.candidate.bind, Binder):
                    assert sum(nbytes for _, nbytes in binder.explain().ldm) <= LDM_BYTES
    assert plans >= 50
    for message in unserved:
        word = re.search(r"no composed plugin computes (\w+)", message)
        assert word is not None and word[1] in WITHOUT, message
