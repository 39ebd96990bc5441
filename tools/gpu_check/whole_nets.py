"""Nets on a GPU compared with the host: every blob and gradient of a step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import ours
from bench.layers import Net
from bench.nets import NETS
from cases import Cases, Table, failed
from race import asked

import demitasse

Arrays = dict[str, np.ndarray]
Losses = list[float]

PRECISIONS = {"f32": 1e-5, "tf32": 1e-2, "bf16": 5e-2}
"""The largest difference of the first loss from the host's in float64, relative to that."""
NEAR = 1e-4
"""The largest difference of an array in float32: its length relative to the array's. In nets of many
ReLUs and maxima differences are larger: an element near 0 is passed on here and not there, with all that
follows. Float32 on the host shows how large they become in a net."""
AS_FAR = 4.0
"""Such a net may then differ by so many times the largest difference of the host's float32."""
STEPS = 4


def agreement(seconds: float, stand_in: bool, without: Cases) -> Iterator[Table]:
    """Compare every blob, gradient and parameter of a step in float32, and the first loss in each
    precision, with the host's in float64."""
    nets = ("lenet",) if stand_in else ("lenet", "cifar10_quick", "alexnet", "resnet50", "googlenet")
    end, first = time.monotonic() + seconds, dict[str, float]()
    for name, precision in itertools.product(nets, PRECISIONS):
        if (case := f"{name} {precision}") in without or name not in asked.nets:
            continue
        if time.monotonic() > end - 15:
            yield {"skipped": [case]}
            continue
        yield {"begun": case, "limit": 100}
        net = NETS[name]()
        net.batch = 4 if name in ("lenet", "cifar10_quick") else 2
        try:
            if precision == "f32":
                expected, losses = _on_host(net, "f64")
                first[name] = losses[0]
                yield from _compared(name, net, expected, losses, stand_in)
            elif name in first:
                yield from _precision(name, net, precision, first[name], stand_in)
        except Exception as error:  # noqa: BLE001 - the next net may work
            yield failed(case, error, stand_in)


def _on_host(net: Net, precision: str) -> tuple[Arrays, Losses]:
    with ours.on_cpu() as runtime:
        return _stepped(ours.trainer(runtime, net, precision, retain="all"))


def _stepped(trainer: Any) -> tuple[Arrays, Losses]:
    """Return all blobs, gradients and parameters after a step, by name, and the losses of some steps."""
    losses, arrays = [float(trainer.step().loss)], Arrays()
    for blob in trainer.net.blobs:
        for part in ("data", "diff"):
            try:
                arrays[f"{blob} {part}"] = np.array(getattr(trainer.net.blobs[blob], part))
            except demitasse.ModelError:
                continue  # it has no gradient
    for layer, parameters in trainer.net.params.items():
        arrays |= {f"{layer} parameter {n}": np.array(each) for n, each in enumerate(parameters)}
    return arrays, [*losses, *(float(trainer.step().loss) for _ in range(STEPS - 1))]


def _distances(found: Arrays, expected: Arrays) -> list[tuple[float, str]]:
    """Return relative differences of arrays from the expected ones, largest first. An array that is not
    finite differs infinitely."""
    far = []
    for what, each in expected.items():
        length = float(np.linalg.norm(each.astype(np.float64)))
        apart = float(np.linalg.norm(found[what].astype(np.float64) - each)) / (length or 1.0)
        far.append((apart if np.isfinite(apart) else np.inf, what))
    return sorted(far, reverse=True)


def _compared(name: str, net: Net, expected: Arrays, losses: Losses, stand_in: bool) -> Iterator[Table]:
    with ours.on_gpu(stand_in) as runtime:
        found, mine = _stepped(ours.trainer(runtime, net, "f32", retain="all"))
    far, limit = _distances(found, expected), NEAR
    table: Table = {
        "net": name,
        "arrays": len(far),
        "losses": mine,
        "expected": losses,
        "furthest": far[:5],
    }
    if far[0][0] > NEAR:
        theirs, near = _on_host(net, "f32")
        host = _distances(theirs, expected)
        limit = max(NEAR, AS_FAR * host[0][0])
        table |= {"host's furthest": host[:5], "host's losses": near}
    yield {"nets": [table]}
    wrong = [f"{name}: {what} is {by:.2e} from float64" for by, what in far if by > limit]
    if abs(mine[0] - losses[0]) > PRECISIONS["f32"] * abs(losses[0]):
        wrong.append(f"{name}: the first loss is {mine[0]}, in float64 {losses[0]}")
    if wrong:
        yield {"wrong": wrong[:10]}


def _precision(name: str, net: Net, precision: str, expected: float, stand_in: bool) -> Iterator[Table]:
    with ours.on_gpu(stand_in) as runtime:
        loss = float(ours.trainer(runtime, net, precision).step().loss)
    yield {"precisions": [[name, precision, loss, expected]]}
    if abs(loss - expected) > PRECISIONS[precision] * abs(expected):
        yield {"wrong": [f"{name} {precision}: the first loss is {loss}, in float64 {expected}"]}
