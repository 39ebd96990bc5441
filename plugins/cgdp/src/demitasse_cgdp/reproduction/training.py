"""An iteration with one, two and four GPUs: layers in proportion to their counts, and the exchange by
the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from demitasse_cgdp.chunks import ChunkSearch, chunks
from demitasse_cgdp.model.definitions import LayerTimes, in_turn
from demitasse_cgdp.reproduction.machine import LAUNCH, MEMORY, MS, PEAK, calibrated
from demitasse_cgdp.reproduction.nets import NETS, WORD, Net
from demitasse_cgdp.reproduction.printed import BVLC, LARGEST_CHUNK, TABLE_2, TRL

UPDATE = 10
"""Passes of Caffe's SGD over the parameters: 3 for weight decay, 4 for momentum, 3 for the step."""

BESIDES = 5e-6
"""Seconds of a kernel besides arithmetic and memory traffic (assumed; the description's ``launch``)."""

LIKE = {"ResNet-152": "GoogLeNet-v1"}
"""For a net whose single-GPU time is not printed, the net whose slowness it is assumed to have: the
other one with many small convolutions."""


def roofline(flops: float, moved: float) -> float:
    """Return the least seconds that a P100 needs."""
    return max(flops / PEAK, moved / MEMORY)


def least(net: Net) -> tuple[float, float, float]:
    """Return the least seconds of forward, backward and update."""
    forward, backward = (
        sum(roofline(*way) for way in ways)
        for ways in ([e.forward for e in net.operations], [e.backward for e in net.operations])
    )
    return forward, backward, UPDATE * net.gradients / MEMORY


def besides(net: Net) -> tuple[float, float, float]:
    """Return the seconds that kernels take besides, in forward, backward and update."""
    forward, backward = (sum(each.kernels[way] for each in net.operations) for way in (0, 1))
    return BESIDES * forward, BESIDES * backward, 0.0


@cache
def slowness(name: str) -> float:
    """Return the ratio of the printed iteration with one GPU (BVLC/Caffe) to the least time, both
    without what kernels take besides."""
    name = LIKE.get(name, name)
    net = NETS[name]()
    return (TABLE_2[BVLC, name][0] * MS - sum(besides(net))) / sum(least(net))


def phases(net: Net) -> tuple[float, float, float]:
    """Return the seconds of forward, backward and update."""
    slow = slowness(net.name)
    forward, backward, update = (
        slow * each + more for each, more in zip(least(net), besides(net), strict=True)
    )
    return forward, backward, update


def alone(framework: str, name: str) -> float:
    """Return the seconds of an iteration with one GPU: as printed, otherwise by counts."""
    row = TABLE_2.get((framework, name))
    return sum(phases(NETS[name]())) if row is None else row[0] * MS


def exchanged(net: Net) -> list[tuple[str, int]]:
    """Return Caffe's layers with parameters in the order of backward, with the bytes of their gradients.
    A convolution of ResNet-152 thus counts as three layers, with its normalisation and its scale. The
    chunk sizes that the paper's Algorithm 1 found with smaller steps, 3, 6 and 9, are multiples of
    that."""
    return [(e.name, WORD * e.parameters) for e in reversed(net.operations) if e.parameters]


def reached(net: Net, slow: float, ends: Sequence[str], launch: float = LAUNCH) -> dict[str, float]:
    """Return when backward finishes each layer with parameters, in seconds from its beginning, if it
    synchronises after the layers in ``ends``. The thread launches kernels while the accelerator executes
    earlier ones. After a synchronisation none is in the queue, so a kernel shorter than a launch makes
    the accelerator wait for the next launch."""
    launched, done, last = 0.0, 0.0, set(ends)
    found: dict[str, float] = {}

    def run(kernels: int, seconds: float) -> None:
        nonlocal launched, done
        for _ in range(kernels):
            launched += launch
            done = max(launched, done) + seconds / kernels + BESIDES

    for each in net.operations:
        run(each.kernels[0], slow * roofline(*each.forward))
    begun = done
    for each in reversed(net.operations):
        run(each.kernels[1], slow * roofline(*each.backward))
        if each.parameters:
            found[each.name] = done - begun
            if each.name in last:
                launched = max(launched, done)
    found[""] = done - begun
    return found


@cache
def layer_times(name: str, batch: int, gpus: int, size: int) -> tuple[tuple[LayerTimes, ...], float]:
    """Return the model's terms for chunks of ``size`` layers, and the time of backward alone."""
    net, rates = NETS[name](batch), calibrated().rates
    slow, together = slowness(name), chunks(exchanged(net), size)
    times = reached(net, slow, [chunk[-1][0] for chunk in together])
    found, before = [], 0.0
    for chunk in together:
        sent = float(sum(some for _, some in chunk))
        down, add, up = rates.transfers(sent, gpus)
        after = times[chunk[-1][0]]
        longer = after - before + rates.slower(sent, gpus)
        found.append(LayerTimes(longer, 0.0, down + add, up, down))
        before = after
    return tuple(found), reached(net, slow, ())[""]


def cgdp_overhead(name: str, gpus: int, size: int = 1, batch: int | None = None) -> float:
    """Return the seconds of an iteration beyond those with one GPU: by how much backward is prolonged,
    the return of the last sums, and waiting for the slowest."""
    if gpus == 1:
        return 0.0
    net = NETS[name]() if batch is None else NETS[name](batch)
    layers, backward = layer_times(name, net.batch, gpus, size)
    return in_turn(layers) - backward + calibrated().waiting(net, gpus)


def typical_overhead(name: str, gpus: int) -> float:
    """Return the same for BVLC/Caffe: collecting, broadcasting, and waiting for the slowest."""
    if gpus == 1:
        return 0.0
    net, machine = NETS[name](), calibrated()
    tree, size = machine.tree(gpus), float(net.gradients)
    return tree.collect(size) + tree.broadcast(size) + machine.waiting(net, gpus)


def iteration(framework: str, name: str, gpus: int, size: int = 1) -> float:
    """Return the seconds of an iteration."""
    more = cgdp_overhead(name, gpus, size) if framework == TRL else typical_overhead(name, gpus)
    return alone(framework, name) + more


def best_chunk(name: str, gpus: int = 4, batch: int | None = None) -> tuple[int, float]:
    """Return the chunk size with the least overhead, of those that Figure 2 has, and that overhead."""
    sizes = range(1, min(len(exchanged(NETS[name]())), LARGEST_CHUNK) + 1)
    return min(((size, cgdp_overhead(name, gpus, size, batch)) for size in sizes), key=lambda x: x[1])


def searched(name: str, step: int, reach: int, gpus: int = 4) -> int:
    """Return the size that Algorithm 1 settles on."""
    search = ChunkSearch(step, reach, 1)
    while not search.done:
        search.iterated(iteration(TRL, name, gpus, search.chunk))
    return search.best_chunk


def search_length(step: int, reach: int, best: int, interval: int = 10) -> int:
    """Return the number of iterations that Algorithm 1 takes if no size is faster than ``best``."""
    search = ChunkSearch(step, reach, interval)
    while not search.done:
        search.iterated(1.0 if search.chunk == best else 2.0)
    return search.iterations


def test_seconds(name: str, batch: int, iterations: int) -> float:
    """Return the seconds of a test on one GPU: ``iterations`` forward passes of ``batch`` images."""
    return iterations * phases(NETS[name](batch))[0]


def last_sum(name: str, gpus: int) -> float:
    """Return the seconds from the end of backward until the last sum is back."""
    net = NETS[name]()
    layers, _ = layer_times(name, net.batch, gpus, 1)
    return in_turn(layers) - sum(layer.bp for layer in layers)
