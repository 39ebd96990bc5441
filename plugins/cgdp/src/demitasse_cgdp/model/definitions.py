"""The cost model of section 3.2 and its chunks (section 4.1): pure functions of the times of layers.
Times are in seconds. Layers are in the order in which backward visits them: layer l first, layer 1
last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from demitasse_cgdp.chunks import chunks


@dataclass(frozen=True)
class LayerTimes:
    """The times of one layer, or of a chunk of layers. ``bp``: its backward on the accelerator.
    ``sync``: making sure that backward is over (t_as). ``sum``: bringing its gradients to the host and
    adding them (t_aa), of which ``down`` is the copy. ``back``: returning the sum (t_bc)."""

    bp: float
    sync: float = 0.0
    sum: float = 0.0
    back: float = 0.0
    down: float = 0.0


def backward(layers: Sequence[LayerTimes]) -> float:
    """Return T_BP of definition 3.1: the time of backward alone."""
    return sum(layer.bp for layer in layers)


def processing(layers: Sequence[LayerTimes]) -> list[float]:
    """Return T_BP^i of definition 3.2 for each layer: from the beginning of backward until its sum is
    back."""
    reached = accumulate(layer.bp + layer.sync for layer in layers)
    return [time + layer.sum + layer.back for time, layer in zip(reached, layers, strict=True)]


def cgdp(layers: Sequence[LayerTimes]) -> float:
    """Return T of definition 3.3: the time of backward with CGDP, which is that of its slowest layer."""
    return max(processing(layers), default=0.0)


def typical(layers: Sequence[LayerTimes]) -> float:
    """Return T' of definition 3.4: the time of backward with typical data parallelism, which needs no
    synchronisation and overlaps nothing."""
    return backward(layers) + typical_overhead(layers)


def typical_overhead(layers: Sequence[LayerTimes]) -> float:
    """Return T'_O: T' - T_BP."""
    return sum(layer.sum + layer.back for layer in layers)


def cgdp_overhead(layers: Sequence[LayerTimes]) -> float:
    """Return T_O: the overhead if backward hides the transfers of all layers but layer 1. It is never
    above T - T_BP."""
    return sum(layer.sync for layer in layers) + layers[-1].sum + layers[-1].back if layers else 0.0


def pays(layers: Sequence[LayerTimes]) -> bool:
    """Return whether CGDP is faster: T_O < T'_O."""
    return cgdp_overhead(layers) < typical_overhead(layers)


def in_turn(layers: Sequence[LayerTimes]) -> float:
    """Return T if a transfer waits for the one before it in its direction (section 3.1: one transfer per
    direction at a time), and an addition for the one before it. Never below ``cgdp``."""
    computed = landed = summed = returned = 0.0
    for layer in layers:
        computed += layer.bp + layer.sync
        landed = max(landed, computed) + layer.down
        summed = max(summed, landed) + layer.sum - layer.down
        returned = max(returned, summed) + layer.back
    return max(computed, returned)


def joined(layers: Sequence[LayerTimes], size: int) -> list[LayerTimes]:
    """Return the times of layers in chunks of ``size``, each chunk as one layer: backward, sums and
    returns are added up, with one synchronisation, that of its last layer (section 4.1). All functions
    above apply to chunks too."""
    return [
        LayerTimes(
            sum(layer.bp for layer in chunk),
            chunk[-1].sync,
            sum(layer.sum for layer in chunk),
            sum(layer.back for layer in chunk),
            sum(layer.down for layer in chunk),
        )
        for chunk in chunks(layers, size)
    ]


def ways(layers: int) -> int:
    """Return the number of ways to group ``layers`` layers, if not all of them are one chunk
    (proposition 4.1)."""
    return (1 << layers - 1) - 1


def best_chunk(layers: Sequence[LayerTimes]) -> tuple[int, float]:
    """Return the chunk size, of all possible ones, with which backward is fastest, and its time in
    seconds. Among equals, the smallest size is returned."""
    found = [(in_turn(joined(layers, size)), size) for size in range(1, max(1, len(layers)) + 1)]
    seconds, size = min(found)
    return size, seconds
