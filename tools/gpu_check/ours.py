"""Demitasse on a GPU: composed from modules, installed or not, and training a net."""

from __future__ import annotations

import importlib
import re
import tempfile
import time
import tomllib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import prototxt, values
from bench.layers import Net
from held import timed

import demitasse
from demitasse import Level, Machine, MemorySpace, SyncSpec, fingerprint
from demitasse_gpu.libraries.measuring import measured

COMMON = ("caffe", "training", "datasets", "snapshots")


def plugins(*names: str) -> list[Any]:
    """Return plugins as objects: their modules with their manifests."""
    made = []
    for name in names:
        module = importlib.import_module(f"demitasse_{name}.plugin")
        text = files(f"demitasse_{name}").joinpath("plugin.toml").read_text("utf-8")
        module.manifest = tomllib.loads(text)  # type: ignore[attr-defined]
        made.append(module)
    return made


def driver(stand_in: bool) -> dict[str, Any]:
    """Return the options that choose the driver, a GPU's or the processor's, and that measure engines
    anew: an earlier measurement may have been made while the device was shared, and has already compared
    our kernels with the libraries'."""
    if not stand_in:
        return {"remember": False}
    from threaded_driver import ThreadedDriver

    return {"remember": False, "driver": ThreadedDriver}


def is_alive(stand_in: bool) -> bool:
    """Whether this process can continue to use the first GPU."""
    from demitasse_gpu.device import device

    try:
        found = device("gpu:0", driver(stand_in))
        if found is not None:
            found.synchronise()
    except Exception:  # noqa: BLE001 - the reason does not matter: something failed before
        return False
    return True


def on_gpu(
    stand_in: bool, workers: int = 1, sync: SyncSpec | None = None, at: str = "gpu:0", **wishes: Any
) -> Any:
    """Return a runtime with workers on the first GPU."""
    memory = (MemorySpace("gpu", at=at),)
    gpu = Level("gpu", workers, workers="streams", memory=memory, sync=sync)
    machine = Machine("gpu_check", (Level("node"), gpu), fingerprint=fingerprint())
    more = [sync.plugin] if sync is not None else []
    named = plugins(*COMMON, "gpu", "cpu", *more)
    return demitasse.compose(machine, named, {"gpu": {**driver(stand_in), **wishes}})


def on_cpu() -> Any:
    """Return a runtime with one worker on the processors."""
    import os

    machine = Machine("host", (Level("node", cores=os.cpu_count() or 1),), fingerprint=fingerprint())
    return demitasse.compose(machine, plugins(*COMMON, "cpu", "reference"))


def trainer(runtime: Any, net: Net, precision: str, samples: Any = None, **wishes: Any) -> Any:
    """Return a trainer of a net with random parameters, and with random samples unless some are
    given."""
    samples = values.samples(net, net.batch) if samples is None else samples
    with tempfile.TemporaryDirectory() as folder:
        path = prototxt.write(net, Path(folder))
        train = Path(folder) / "train.prototxt"
        filled = re.sub(
            r"(convolution_param|inner_product_param) \{",
            r'\1 { weight_filler { type: "msra" }',
            train.read_text(),
        )
        train.write_text(filled)
        return runtime.trainer(path, data={"train": samples}, precision=precision, **wishes)


class Training:
    """Training steps whose samples stay in place, as in a benchmark of kernels."""

    def __init__(self, net: Net, precision: str, stand_in: bool) -> None:
        self.runtime = on_gpu(stand_in)
        self.device = self.runtime.allocator("gpu:0").device
        self._before = self.device.pool.statistics.used
        self.trainer = trainer(self.runtime, net, precision)
        self.losses = [float(self.trainer.step().loss)]
        (worker,) = self.trainer._workers
        self._reads = list(worker.step.reads)
        worker.step.reads.clear()
        self.losses += [float(self.trainer.step().loss) for _ in range(3)]

    def run(self, steps: int) -> None:
        """Run some steps to their end."""
        self.trainer.step(steps)
        self.device.synchronise()

    def timed(self, steps: int) -> float:
        """Return the seconds that some steps take."""
        return timed(self, steps)

    def reading(self, steps: int) -> float:
        """Return seconds per step when samples come from the host, after one step to begin with."""
        (worker,) = self.trainer._workers
        worker.step.reads.extend(self._reads)
        try:
            self.run(1)
            start = time.perf_counter()
            self.run(steps)
            return (time.perf_counter() - start) / steps
        finally:
            worker.step.reads.clear()

    @property
    def memory(self) -> int:
        """The bytes of device memory that it uses."""
        return int(self.device.pool.statistics.used) - self._before

    @property
    def all_memory(self) -> int:
        """The bytes of device memory that all of the process's nets use; deleted nets use none."""
        return int(self.device.pool.statistics.used)

    def entries(self) -> list[list[Any]]:
        """Return the plan's entries, the longest first: layer, operation, kernel, the microseconds of
        each when repeated alone and within a step, and the floating-point operations and bytes that the
        plan counts."""
        from demitasse_gpu.launch import Row

        (worker,) = self.trainer._workers
        driver, stream = self.device.driver, self.device.stream
        events = [driver.event() for _ in range(len(worker.step.works) + 1)]
        driver.record(events[0], stream)
        for (_, work), event in zip(worker.step.works, events[1:], strict=True):
            work()
            driver.record(event, stream)
        driver.wait(events[-1])
        in_step = [driver.seconds_between(*pair) for pair in pairwise(events)]
        # A row's own graph cannot be part of another, and its check would wait for the device.
        alone = [work._enqueue if isinstance(work, Row) else work for _, work in worker.step.works]
        found = [
            [
                *(entry.layer, entry.operation, entry.kernel),
                round(1e6 * measured(self.device, lambda stream, work=work: work())[1], 2),
                round(1e6 * seconds, 2),
                *(entry.flops, entry.bytes),
            ]
            for (entry, _), work, seconds in zip(worker.step.works, alone, in_step, strict=True)
        ]
        return sorted(found, key=lambda each: -each[3])

    def close(self) -> None:
        self.runtime.close()
        self.device.pool.trim()
