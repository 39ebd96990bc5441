"""What each rank of ``test_device`` does: trains a small net on a made-up device, or on the host.

The device's arrays are no NumPy arrays; kernels are the reference's, which alone see what is inside. Its
streams but ``default`` are threads, late on purpose: a copy that nobody waits for comes too late.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

import numpy as np
import remote_memory
from remote_memory import Giver, kernels_inside

import demitasse
from demitasse import Level, Machine, MemorySpace, SyncSpec, compose, hookimpl
from demitasse_allreduce import library
from demitasse_allreduce.launch import started

PLUGINS = ["reference", "training", "caffe", "datasets", "snapshots", "allreduce"]
LATE = 1e-3
"""Seconds by which a stream is late."""

added: list[int] = []
"""The number of elements that were added on the device."""


class Remote(remote_memory.Remote):
    """An array of the device, which records what is added to it."""

    def __init__(self, inside: np.ndarray) -> None:
        super().__init__(inside)
        self.itemsize, self.ndim = inside.itemsize, inside.ndim

    def __iadd__(self, other: Self) -> Self:
        assert isinstance(other, Remote), "the device adds its own memory alone"
        added.append(self.size)
        return super().__iadd__(other)


class Reachable(Remote):
    """An array that MPI can access."""

    @property
    def __cuda_array_interface__(self) -> Mapping[str, Any]:
        return {**self.inside.__array_interface__, "version": 3}


class At:
    """A point in a stream."""

    def __init__(self) -> None:
        self._reached, self.seconds = threading.Event(), 0.0

    @property
    def done(self) -> bool:
        return self._reached.is_set()

    def reach(self) -> None:
        self._reached.set()

    def wait(self) -> None:
        self._reached.wait()


def moved(target: Any, source: Any) -> None:
    """Copy between memories."""
    into = target.inside if isinstance(target, Remote) else target
    into[...] = source.inside if isinstance(source, Remote) else source


class Line:
    """A stream: a thread that does late what was enqueued."""

    def __init__(self, name: str) -> None:
        self.name, self._line = name, SimpleQueue[Callable[[], None] | None]()
        self._thread = threading.Thread(target=self._run, name=f"stream-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._line.get()) is not None:
            time.sleep(LATE)
            work()

    def copy(self, target: Any, source: Any) -> None:
        assert target.size == source.size and target.dtype == source.dtype
        self._line.put(lambda: moved(target, source))

    def wait(self, event: At) -> None:
        self._line.put(event.wait)

    def record(self) -> At:
        at = At()
        self._line.put(at.reach)
        return at

    def close(self) -> None:
        self._line.put(None)
        self._thread.join()


class Now:
    """The default stream: kernels are done when they are called, only by the thread that made it."""

    name = "default"

    def __init__(self) -> None:
        self._owner = threading.get_ident()

    def copy(self, target: Any, source: Any) -> None:
        self._check()
        moved(target, source)

    def wait(self, event: At) -> None:
        self._check()
        event.wait()

    def record(self) -> At:
        self._check()
        at = At()
        at.reach()
        return at

    def _check(self) -> None:
        assert threading.get_ident() == self._owner, "the default stream is its worker's alone"


class Engine:
    def __init__(self, place: str) -> None:
        self.place, self.default, self._lines = place, Now(), dict[str, Line]()

    def stream(self, name: str) -> Line:
        if name not in self._lines:
            self._lines[name] = Line(name)
        return self._lines[name]

    def pinned(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros(shape, dtype)

    def close(self) -> None:
        for line in self._lines.values():
            line.close()


class Device:
    """The plugin."""

    manifest = {
        "name": "device",
        "api": ">=0.1,<0.2",
        "roles": {"allocator": {"priority": 90}, "kernels": {"priority": 90}, "stream_engine": {}},
    }

    def __init__(self, kind: type[Remote]) -> None:
        self._kind = kind

    @hookimpl
    def allocator(self, space: str, options: Any) -> Giver | None:
        return Giver(space, self._kind) if space.startswith("device") else None

    @hookimpl
    def stream_engine(self, space: str, machine: Machine, options: Any) -> Engine | None:
        return Engine(space) if space.startswith("device") else None

    @hookimpl
    def kernels(self, request: demitasse.Request) -> list[demitasse.Candidate]:
        return kernels_inside(request)


def machine(sync: Mapping[str, Any], device: bool) -> Machine:
    """Return a machine with a device, or a host, in each of the processes that were started."""
    found = started()
    count = found.size if found is not None and found.size else 1
    inner = Level("node", memory=(MemorySpace("host"),), cores=1)
    if device:
        inner = Level(
            "accelerator", 1, workers="streams", memory=(MemorySpace("device", at="device:*"),)
        )
    levels = (Level("process", count, workers="mpi", sync=SyncSpec("allreduce", sync)), inner)
    patience = {"allreduce": {"peer_timeout": "100 s"}}  # a busy machine may stop for long
    return Machine("processes", levels, fingerprint="any", options=patience)


def trained(solver: Path, job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the losses of a job's iterations, whether all ranks agree, and how many elements were
    added on their devices."""
    kind = job.get("device")
    plugins: list[Any] = [Device(Reachable if kind == "reachable" else Remote)] if kind else []
    library.device_aware = lambda mpi: kind == "reachable"  # type: ignore[assignment]
    added.clear()
    with compose(machine(job["sync"], bool(kind)), plugins=[*plugins, *PLUGINS]) as runtime:
        prefix = str(solver.with_name(job["prefix"]))
        trainer = runtime.trainer(solver, precision="f64", overrides={"snapshot_prefix": prefix})
        losses = [trainer.step().loss for _ in range(job["iterations"])]
        trainer.snapshot()
        weights = {n: [np.array(a).tolist() for a in arrays] for n, arrays in trainer.net.params.items()}
        everyone = runtime.processes.gather({"losses": losses, "weights": weights})
        additions = sum(runtime.processes.gather(sum(added)))
    alike = all(each == everyone[0] for each in everyone)
    return {"losses": losses, "alike": alike, "added": additions}


def main() -> None:
    for job in json.loads(sys.argv[2]):
        found = trained(Path(sys.argv[1]), job)
        launch = started()
        if launch is None or launch.rank == 0:
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
