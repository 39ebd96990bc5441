"""The parts of the check; each yields tables, which together are its result."""

from __future__ import annotations

import gc
import importlib.util
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ours
from bench.nets import NETS
from cases import FAILED, Cases, Table, failed
from commands import command
from race import preparing, small, speed
from rates import rates
from ways import ways
from whole_nets import agreement


def about(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Report the machine, the versions, and the findings of ``doctor``."""
    from demitasse_gpu.diagnosis import findings

    versions = {"python": sys.version.split()[0], "numpy": np.__version__}
    for name in ("torch", "cupy", "numba"):
        if importlib.util.find_spec(name) is not None:
            versions[name] = importlib.import_module(name).__version__
    yield {"versions": versions}
    yield {"doctor": [[f.level, f.subject, f.message, f.remedy] for f in findings()]}
    with ours.on_gpu(stand_in) as runtime:
        yield {"device": vars(runtime.allocator("gpu:0").device.driver.properties)}


def engine(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Test the streams with the kit for all engines, check by check."""
    import functools

    from demitasse_gpu.array import empty
    from demitasse_gpu.device import device
    from demitasse_gpu.engine import DeviceEngine
    from demitasse_streams import bench, conformance

    found = device("gpu:0", ours.driver(stand_in))
    assert found is not None

    def array(given: np.ndarray) -> Any:
        made = empty(found, given.shape, given.dtype)
        made[...] = given
        found.synchronise()
        return made

    passed = 0
    for check in conformance.CHECKS:
        if check.__name__ in without:
            continue
        yield {"begun": check.__name__, "limit": 70}
        run = functools.partial(bench.on_bench, lambda: DeviceEngine(found), array, 20.0, check)
        try:
            bench.within(60.0, check, run)
            passed += 1
        except AssertionError as error:
            # A device continues with a copy after a call without asking how the call ended.
            known = check.__name__ == "errors_of_calls"
            yield {"known" if known else "wrong": [f"{check.__name__}: {error}"]}
        except Exception as error:  # noqa: BLE001 - the next check may work
            yield failed(check.__name__, error, stand_in)
        yield {"passed": passed}


def copies(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Measure GB/s of large copies in each direction, next to the nominal rate of the link."""
    from demitasse_gpu.array import empty
    from demitasse_gpu.device import device
    from demitasse_gpu.engine import DeviceEngine

    found = device("gpu:0", ours.driver(stand_in))
    assert found is not None
    size = 2**22 if stand_in else 2**28
    streams, rates = DeviceEngine(found), dict[str, float]()
    near, far, other = (
        streams.pinned((size,), "uint8"),
        empty(found, (size,), "uint8"),
        empty(found, (size,), "uint8"),
    )
    pairs = {"h2d": (far, near), "d2h": (near, far), "d2d": (other, far)}
    for kind, (target, source) in pairs.items():
        stream, best = streams.stream(kind), 0.0
        for _ in range(10):
            first = stream.record()
            stream.copy(target, source)
            last = stream.record()
            last.wait()
            best = max(best, size / (last.seconds - first.seconds))
        rates[kind] = round((2 if kind == "d2d" else 1) * best / 1e9, 2)
    both = [streams.stream(kind) for kind in ("h2d", "d2h")]
    begin = time.perf_counter()
    for _ in range(4):
        for stream, kind in zip(both, ("h2d", "d2h"), strict=True):
            stream.copy(far if kind == "h2d" else near, near if kind == "h2d" else other)
    for stream in both:
        stream.synchronise()
    rates["both ways"] = round(8 * size / (time.perf_counter() - begin) / 1e9, 2)
    streams.close()
    yield {"rates": rates, "link": link(), "packets": packets()}


def link() -> str:
    """Return the generation and width of the link to the GPU, as its driver reports them."""
    asked = "pcie.link.gen.current,pcie.link.width.current,pcie.link.gen.max,pcie.link.width.max"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


def packets() -> dict[str, int] | str:
    """Return how many bytes a packet on the link to the GPU can carry, and a request can read, from the
    device's configuration space (PCI Express base specification, 7.5.3.4)."""
    asked = ["nvidia-smi", "--query-gpu=pci.bus_id", "--format=csv,noheader"]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout
        domain, rest = said.splitlines()[0].strip().lower().split(":", 1)
        registers = Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/config").read_bytes()
    except (OSError, IndexError, ValueError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"
    at, express = registers[0x34], 0x10
    while at and at + 10 <= len(registers) and registers[at] != express:
        at = registers[at + 1]
    if not at or at + 10 > len(registers):
        return f"unknown: {len(registers)} bytes of configuration, no PCI Express capability"
    control = int.from_bytes(registers[at + 8 : at + 10], "little")
    return {"payload": 128 << (control >> 5 & 7), "request": 128 << (control >> 12 & 7)}


def memory(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Measure the device memory of CGDP and of the typical scheme, with two replicas on one device."""
    from demitasse import SyncSpec

    name = "lenet" if stand_in else "alexnet"
    for scheme in ("cgdp", "typical"):
        if scheme in without:
            continue
        yield {"begun": scheme, "limit": 30}
        sync = SyncSpec("cgdp", {"scheme": scheme, **({"chunk": 1} if scheme == "cgdp" else {})})
        net = NETS[name]()
        with ours.on_gpu(stand_in, 2, sync) as runtime:
            trainer = ours.trainer(runtime, net, "f32")
            losses = [float(trainer.step().loss) for _ in range(3)]
            pool = runtime.allocator("gpu:0").device.pool
            found = {
                "scheme": scheme,
                "losses": losses,
                "used": pool.statistics.used,
                "peak": pool.statistics.peak,
            }
            yield {"schemes": [found]}
            del trainer
        gc.collect()
        pool.trim()


def mistakes(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Check the message if the device lacks memory, does not exist, or a kernel fails: one line that
    says what to do."""
    cases: dict[str, tuple[Callable[[], object], str, str]] = {
        "a batch too large": (lambda: _too_large(stand_in), "PlanError", "use a smaller batch"),
        "a device that is not there": (
            lambda: _missing(stand_in),
            "CompositionError",
            "nvidia-smi lists",
        ),
        "a kernel that goes astray": (lambda: _astray(stand_in), "WorkerError", "a kernel failed"),
    }
    only = ("a batch too large",) if stand_in else tuple(cases)
    for name in only:
        if name in without:
            continue
        yield {"begun": name, "limit": 40}
        cause, kind, words = cases[name]
        try:
            cause()
            said = "nothing was raised"
        except Exception as error:  # noqa: BLE001 - its type is checked
            said = f"{type(error).__name__}: {error}"
        yield {"said": [[name, said]]}
        if not (said.startswith(kind) and words in said and "\n" not in said):
            yield {"wrong": [f"{name}: {said} (expected {kind} with {words!r}, in one line)"]}


def _too_large(stand_in: bool) -> None:
    net = NETS["lenet" if stand_in else "resnet50"]()
    net.batch = 2**16 if stand_in else 2600  # 210 GB; a tensor has 2**31 elements at most
    with ours.on_gpu(stand_in) as runtime:
        samples = {"data": np.zeros((1, *net.image), np.float32), "label": np.zeros(1, np.float32)}
        ours.trainer(runtime, net, "f32", samples=samples)


def _missing(stand_in: bool) -> None:
    with ours.on_gpu(stand_in, at="gpu:15") as runtime:
        ours.trainer(runtime, NETS["lenet"](), "f32")


def _astray(stand_in: bool) -> None:
    from demitasse_gpu.device import device

    found = device("gpu:0", ours.driver(stand_in))
    assert found is not None
    text = 'extern "C" __global__ void astray(float *p) { p[threadIdx.x] = 1; }'
    function = found.function(text, "astray")
    found.driver.launch(function, (1, 1, 1), (32, 1, 1), (64,), 0, found.stream)
    found.synchronise()


def kernels(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Compare every kernel with the reference on random requests: the plugin's own tests, on this
    device. ``on_device``, a plugin of pytest, reports failures at once."""
    lacking = [name for name in ("pytest", "hypothesis") if importlib.util.find_spec(name) is None]
    if lacking:
        yield {"skipped": [f"kernels are compared by {lacking[0]}, which is not here"]}
        return
    tests = Path(__file__).parents[2] / "plugins/gpu/tests"
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no"]
    command += ["-p", "on_device", "-p", "no:cacheprovider"]
    command += ["-W", "default", str(tests / "test_gpu_kernels_agree.py")]
    if stand_in:
        command += ["-x", "-k", "relu and float32"]
    elif importlib.util.find_spec("xdist") is not None:
        command += ["-n", "6"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    watch = threading.Timer(seconds - 5, process.kill)
    watch.start()
    last = deque[str](maxlen=15)
    assert process.stdout is not None
    for line in process.stdout:
        last.append(line.rstrip())
        if line.startswith(FAILED):
            yield {"wrong": [line.removeprefix(FAILED).strip()[:600]]}
    watch.cancel()
    status = process.wait()
    yield {"summary": list(last)[-2:]}
    if not any(re.search(r"[1-9]\d* passed", line) for line in last) or status not in (0, 1):
        yield {"wrong": [f"pytest ended with {status}, not all passed", *last]}


def promises(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Test the plugin's kernels as ``demitasse check`` does, in each precision: every candidate as plans
    request it, between guards, bound twice, in place and in parts, and in a net that is trained."""
    from demitasse_conformance.computing import kernels
    from demitasse_conformance.inquiry import BROKEN, Inquiry

    named = tuple(ours.plugins("gpu", "caffe", "datasets", "training", "reference"))
    for precision in ("f32",) if stand_in else ("f32", "bf16", "tf32", "f64"):
        if precision in without:
            continue
        yield {"begun": precision, "limit": 120}
        asked = Inquiry("gpu", named, options=ours.driver(stand_in), precisions=(precision,))
        for outcome in kernels(asked):
            if outcome.status == BROKEN:
                yield {"wrong": [f"{precision}: {outcome.subject}: {outcome.detail[:400]}"]}
            elif outcome.subject == "in all" or "trained" in outcome.subject:
                yield {"notes": [f"{precision}: {outcome.subject}: {outcome.detail}"]}


RUN: dict[str, Callable[[float, bool, Cases], Iterator[Table]]] = {
    each.__name__: each
    for each in (
        *(about, engine, agreement, kernels, promises, ways, memory, mistakes, command, preparing),
        *(copies, speed, small, rates),
    )
}
