"""The parts of the check; each gives tables, one after the other, that together are its result."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import re
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import ours
from bench.layers import Net
from bench.nets import NETS

import demitasse

Table = dict[str, Any]
Cases = frozenset[str]
"""Cases that a part was begun with before: in the last of them it ended badly."""
ROUNDS = 7
TOLERANCE = 2e-3
"""Of a blob or a gradient against the host's in float32, of its largest: sums of up to a million numbers
in another order, and maxima in pooling that tie but for that."""
SPEED = (
    ("resnet50", "tf32", 128),
    ("alexnet", "tf32", 256),
    ("googlenet", "tf32", 128),
    ("vgg16", "tf32", 64),
    ("resnet50", "bf16", 128),
    ("alexnet", "bf16", 256),
    ("googlenet", "bf16", 128),
    ("vgg16", "bf16", 64),
    ("resnet50", "f32", 64),
    ("alexnet", "f32", 128),
)


class Runner(Protocol):
    def run(self, steps: int) -> None: ...

    def close(self) -> None: ...


def failed(what: str, error: Exception, stand_in: bool) -> Table:
    """An error as a part's result, for the next case may do. Raises it where none can: a device that has
    failed is lost to its process."""
    print(traceback.format_exc(), file=sys.stderr)
    if not ours.is_alive(stand_in):
        raise error
    last = traceback.format_exc()[-3000:]
    return {"wrong": [f"{what}: {type(error).__name__}: {error}"], "tracebacks": [last]}


def about(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """The machine, the versions, and what ``doctor`` says."""
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
    """The streams, held to the kit that all engines are held to, check by check."""
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
            # A device goes on to a copy behind a call without asking how the call ended.
            known = check.__name__ == "errors_of_calls"
            yield {"known" if known else "wrong": [f"{check.__name__}: {error}"]}
        except Exception as error:  # noqa: BLE001 - the next check may do
            yield failed(check.__name__, error, stand_in)
        yield {"passed": passed}


def agreement(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Every blob and gradient of a step, and the losses of several, against the host's."""
    nets = ("lenet",) if stand_in else ("lenet", "cifar10_quick", "alexnet", "googlenet", "resnet50")
    end, first = time.monotonic() + seconds, dict[str, float]()
    for name, precision in itertools.product(nets, ("f32", "tf32", "bf16")):
        if (case := f"{name} {precision}") in without:
            continue
        if time.monotonic() > end - 15:
            yield {"skipped": [case]}
            continue
        yield {"begun": case, "limit": 60}
        net = NETS[name]()
        net.batch = 4 if name in ("lenet", "cifar10_quick") else 2
        try:
            if precision == "f32":
                found = _agrees(name, net, stand_in)
                first[name] = found["nets"][0]["losses"][0][1]
                yield found
            else:
                yield from _precision(name, net, precision, stand_in, first)
        except Exception as error:  # noqa: BLE001 - the next net may do
            yield failed(case, error, stand_in)


def _agrees(name: str, net: Net, stand_in: bool) -> Table:
    """How far blobs, gradients, parameters and losses are from the host's."""
    worst = list[tuple[float, str]]()
    with ours.on_gpu(stand_in) as gpu, ours.on_cpu() as cpu:
        mine, theirs = (ours.trainer(r, net, "f32", retain="all") for r in (gpu, cpu))
        losses = [(mine.step().loss, theirs.step().loss)]
        look, other = mine.net, theirs.net
        for blob in other.blobs:
            for part in ("data", "diff"):
                try:
                    expected = np.array(getattr(other.blobs[blob], part))
                except demitasse.ModelError:
                    continue  # it has no gradient
                found = np.array(getattr(look.blobs[blob], part))
                worst.append((ours.relative(found, expected), f"{blob} {part}"))
        for layer, arrays in other.params.items():
            for number, expected in enumerate(arrays):
                found = np.array(look.params[layer][number])
                worst.append((ours.relative(found, np.array(expected)), f"{layer} parameter {number}"))
        losses += [(mine.step().loss, theirs.step().loss) for _ in range(3)]
    worst.sort(reverse=True)
    far = [f"{name}: {what} differs by {by:.2e}" for by, what in worst if by > TOLERANCE]
    table: Table = {"nets": [{"net": name, "losses": losses, "worst": worst[:5]}]}
    return {**table, "wrong": far[:10]} if far else table


def _precision(
    name: str, net: Net, precision: str, stand_in: bool, first: dict[str, float]
) -> Iterator[Table]:
    """The first loss in another precision, which may differ by a few bits of that from the host's in
    float32: of nets whose ``first`` loss is known, else found now."""
    with ours.on_gpu(stand_in) as runtime:
        loss = float(ours.trainer(runtime, net, precision).step().loss)
    if name not in first:
        with ours.on_cpu() as runtime:
            first[name] = float(ours.trainer(runtime, net, "f32").step().loss)
    expected = first[name]
    off = abs(loss - expected) / abs(expected)
    yield {"precisions": [[name, precision, loss, expected]]}
    if off > {"tf32": 1e-2, "bf16": 5e-2}[precision]:
        yield {"wrong": [f"{name} {precision}: the first loss is {loss}, in float32 {expected}"]}


def speed(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Images a second of training, ours and PyTorch's by turns in the same run."""
    cases = (("lenet", "f32", 16),) if stand_in else SPEED
    end = time.monotonic() + seconds
    settings = [(case, "eager") for case in cases]
    settings += [(case, "compiled") for case in cases[:1] + cases[4:5] + cases[1:4] + cases[5:8]]
    yield from _race(settings, end, 5, stand_in, without)


def small(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """The nets in which launches dominate."""
    cases = [
        (net, precision, 64) for net in ("lenet", "cifar10_quick") for precision in ("tf32", "bf16")
    ]
    settings = [(case, how) for how in ("eager", "reduce-overhead") for case in cases]
    end = time.monotonic() + seconds
    some, steps = (settings[:1], 2) if stand_in else (settings, 100)
    yield from _race(some, end, steps, stand_in, without)


def _race(
    settings: list[tuple[tuple[str, str, int], str]],
    end: float,
    steps: int,
    stand_in: bool,
    without: Cases,
) -> Iterator[Table]:
    peer = None
    if not stand_in and importlib.util.find_spec("torch") is not None:
        import peers as peer  # type: ignore[no-redef]
    for (name, precision, batch), setting in settings:
        if (case := f"{name} {precision} {setting}") in without:
            continue
        if time.monotonic() > end - (15 if setting == "eager" else 45):
            yield {"skipped": [case]}
            continue
        yield {"begun": case, "limit": 90 if setting == "eager" else 150}
        net = NETS[name]()
        net.batch = batch
        said: Table = {"net": name, "precision": precision, "batch": batch, "peer": setting}
        mine = theirs = None
        try:
            start = time.perf_counter()
            mine = ours.Training(net, precision, stand_in)
            said |= {
                "prepared": time.perf_counter() - start,
                "losses": mine.losses,
                "memory": mine.memory,
            }
            theirs = peer.Training(net, precision, setting) if peer is not None else None
            runners: dict[str, Runner] = {
                "ours": mine,
                **({"torch": theirs} if theirs is not None else {}),
            }
            times = by_turns(runners, steps)
            said["seconds"] = {who: statistics.median(t) for who, t in times.items()}
            said["all"] = times
            if theirs is not None:
                said["torch memory"] = theirs.memory
                ratio = said["seconds"]["torch"] / said["seconds"]["ours"]
                said["ratio"] = ratio
                yield {"ratios": [[name, precision, batch, setting, round(ratio, 3)]]}
            if setting == "eager":
                said["seconds"]["ours, samples from the host"] = mine.reading(steps)
                said |= {"kernels": mine.kernels(), "slowest": mine.slowest()}
        except Exception as error:  # noqa: BLE001 - the next net may do
            said["error"] = f"{type(error).__name__}: {error}"
            yield {"races": [said], **failed(case, error, stand_in)}
        else:
            yield {"races": [said]}
        for each in (mine, theirs):
            if each is not None:
                each.close()
        del mine, theirs
        gc.collect()


def by_turns(runners: dict[str, Runner], steps: int) -> dict[str, list[float]]:
    """Seconds a step of each in some rounds, in which all take turns."""
    times: dict[str, list[float]] = {who: [] for who in runners}
    for _ in range(ROUNDS):
        for who, runner in runners.items():
            start = time.perf_counter()
            runner.run(steps)
            times[who].append((time.perf_counter() - start) / steps)
    return times


def copies(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """GB/s of large copies in each direction, beside what the link is said to carry."""
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
    yield {"rates": rates, "link": link()}


def link() -> str:
    """The generation and width of the link to the GPU, as its driver says."""
    asked = "pcie.link.gen.current,pcie.link.width.current,pcie.link.gen.max,pcie.link.width.max"
    command = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: {error}"


def memory(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Device memory of CGDP and of the typical scheme, two replicas on one device."""
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


def kernels(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Every kernel on random requests beside the reference's: the plugin's own tests, on this device."""
    tests = Path(__file__).parents[2] / "plugins/gpu/tests/test_gpu_kernels_agree.py"
    command = [sys.executable, "-m", "pytest", "-q", str(tests), "-p", "on_device", "--tb=line"]
    command += ["-p", "no:cacheprovider", *(["-x", "-k", "relu and float32"] if stand_in else [])]
    cut_off = False
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        out, _ = process.communicate(timeout=seconds - 5)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        cut_off = True
        yield {"skipped": ["cut off"]}
    lines = out.splitlines()
    yield {"summary": lines[-2:]}
    wrong = [line for line in lines if "Error" in line or line.startswith("FAILED")][:40]
    some_passed = re.search(r"[1-9]\d* passed", out)
    if not (wrong or cut_off) and (process.returncode or not some_passed):
        wrong = [f"pytest ended with {process.returncode}, and none passed or not all", *lines[-3:]]
    if wrong:
        yield {"wrong": wrong}


RUN: dict[str, Callable[[float, bool, Cases], Iterator[Table]]] = {
    each.__name__: each for each in (about, engine, agreement, speed, small, copies, memory, kernels)
}
