"""A device whose memory a host neither reads nor writes but through copies, on streams of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from remote_memory import Giver, Remote, kernels_inside

import demitasse
from demitasse import (
    Level,
    Machine,
    MemorySpace,
    SyncSpec,
    compose,
    fingerprint,
    hookimpl,
)

SOLVER = Path("examples/digits/digits_solver.prototxt")
PLUGINS = ["caffe", "training", "datasets", "reference", "snapshots"]
ASKED = {"shape", "dtype", "size", "nbytes", "reshape", "view", "copy", "sum"}
"""What docs/plugins.md asks of arrays that a host does not address; slices and ``np.asarray`` too."""


class Plain(Remote):
    """An array that is no more than it must be: it has what is asked, NumPy's functions refuse it."""

    __array_ufunc__ = None

    def __getattribute__(self, name: str) -> Any:
        if name not in ASKED and name[0] != "_" and name != "inside":
            raise AttributeError(f"an array of a device need not have {name!r}")
        return super().__getattribute__(name)


class At:
    """An event of a stream in which all is done at once."""

    done, seconds = True, 0.0

    def wait(self) -> None:
        """It was reached."""


class Line:
    def __init__(self, name: str, copies: list[int]) -> None:
        self.name, self._copies = name, copies

    def copy(self, target: Remote, source: np.ndarray | Remote) -> None:
        """From the host's memory it is one of the copies that are counted."""
        near = isinstance(source, np.ndarray)
        target[...] = source if near else source[...]
        if near:
            self._copies.append(source.nbytes)

    def wait(self, event: At) -> None:
        event.wait()

    def record(self) -> At:
        return At()


class Engine:
    def __init__(self, place: str) -> None:
        self.place, self.closed, self.copies = place, 0, list[int]()
        self.default = Line("default", self.copies)

    def stream(self, name: str) -> Line:
        return Line(name, self.copies)

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros(shape, dtype)

    def close(self) -> None:
        self.closed += 1


class Device:
    """The plugin: memory, streams, and kernels that the reference computes inside."""

    manifest = {
        "name": "device",
        "api": ">=0.1,<0.2",
        "roles": {"allocator": {"priority": 90}, "kernels": {"priority": 90}, "stream_engine": {}},
    }

    def __init__(self, kind: type[Remote] = Remote) -> None:
        self.engines: dict[str, Engine] = {}
        self._kind = kind

    @hookimpl
    def allocator(self, space: str, options: Any) -> Giver | None:
        return Giver(space, self._kind) if space.startswith("device") else None

    @hookimpl
    def stream_engine(self, space: str, machine: Machine, options: Any) -> Engine | None:
        if not space.startswith("device"):
            return None
        assert space not in self.engines, "a worker's engine is made once"
        return self.engines.setdefault(space, Engine(space))

    @hookimpl
    def kernels(self, request: demitasse.Request) -> list[demitasse.Candidate]:
        return kernels_inside(request)


def lost(self: Any, *given: Any) -> None:
    """What a method of a device that was lost does: here, so that it is the device's code."""
    raise OSError("device lost")


def lost_still(self: Any) -> None:
    raise OSError("it is lost still")


def machine(count: int) -> Machine:
    level = Level(
        "accelerator",
        count,
        workers="streams",
        memory=(MemorySpace("device", at="device:*"),),
        sync=SyncSpec("reference") if count > 1 else None,
    )
    return Machine("devices", (level,), fingerprint=fingerprint())


OVERRIDES = {"max_iter": 4, "test_iter": 2, "test_interval": 2, "display": 0}


def train(
    plugins: Sequence[Any], hw: Any, tmp_path: Path, **options: Any
) -> tuple[list[float], Any, Any]:
    changes = {**OVERRIDES, "snapshot_prefix": str(tmp_path / "digits")} | options.pop("overrides", {})
    with compose(hw, plugins=plugins) as runtime:
        trainer = runtime.trainer(SOLVER, overrides=changes, precision="f64", **options)
        losses = [trainer.step().loss for _ in range(3)]
        scores = trainer.test()
        params = {name: [np.array(a) for a in arrays] for name, arrays in trainer.net.params.items()}
        trainer.snapshot(tmp_path / "kept")
    return losses, scores, params
