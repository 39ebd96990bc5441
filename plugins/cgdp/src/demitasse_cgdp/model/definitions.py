"""The cost model of section 3.2 and its chunks (section 4.1): pure functions over the times of layers,
in seconds, in the order in which backward goes through them, layer l first and layer 1 last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from demitasse_cgdp.chunks import chunks


@dataclass(frozen=True)
class LayerTimes:
    """Of one layer, or of a chunk of them: ``bp``, its backward on the accelerator; ``sync``, making
    sure that it is over (t_as); ``sum``, bringing its gradients to the host and adding them (t_aa), of
    which ``down`` is the copy; ``back``, the way back of the sum (t_bc)."""

    bp: float
    sync: float = 0.0
    sum: float = 0.0
    back: float = 0.0
    down: float = 0.0


def backward(layers: Sequence[LayerTimes]) -> float:
    """Definition 3.1, T_BP: backward alone."""
    return sum(layer.bp for layer in layers)


def processing(layers: Sequence[LayerTimes]) -> list[float]:
    """Definition 3.2, T_BP^i of each layer: from the beginning of backward until its sum is back."""
    reached = accumulate(layer.bp + layer.sync for layer in layers)
    return [time + layer.sum + layer.back for time, layer in zip(reached, layers, strict=True)]


def cgdp(layers: Sequence[LayerTimes]) -> float:
    """Definition 3.3, T: backward with CGDP, as long as its slowest layer takes."""
    return max(processing(layers), default=0.0)


def typical(layers: Sequence[LayerTimes]) -> float:
    """Definition 3.4, T': backward of typical data parallelism, which needs no synchronisation and
    overlaps nothing."""
    return backward(layers) + typical_overhead(layers)


def typical_overhead(layers: Sequence[LayerTimes]) -> float:
    """T'_O: what T' has beyond T_BP."""
    return sum(layer.sum + layer.back for layer in layers)


def cgdp_overhead(layers: Sequence[LayerTimes]) -> float:
    """T_O, where what is on its way of all layers but layer 1 is hidden by backward; never above what T
    has beyond T_BP."""
    return sum(layer.sync for layer in layers) + layers[-1].sum + layers[-1].back if layers else 0.0


def pays(layers: Sequence[LayerTimes]) -> bool:
    """Whether CGDP is quicker: T_O < T'_O."""
    return cgdp_overhead(layers) < typical_overhead(layers)


def in_turn(layers: Sequence[LayerTimes]) -> float:
    """T where a transfer waits for the one before it in its direction (section 3.1: only one in one
    direction at a time), and an addition for the one before it: never below ``cgdp``."""
    computed = landed = summed = returned = 0.0
    for layer in layers:
        computed += layer.bp + layer.sync
        landed = max(landed, computed) + layer.down
        summed = max(summed, landed) + layer.sum - layer.down
        returned = max(returned, summed) + layer.back
    return max(computed, returned)


def joined(layers: Sequence[LayerTimes], size: int) -> list[LayerTimes]:
    """Layers in chunks of ``size``, each as one layer: backward, sums and ways back together, one
    synchronisation, that of its last layer (section 4.1). All of the above holds for them."""
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
    """Proposition 4.1: in how many ways so many layers can be grouped, if not all are one chunk."""
    return (1 << layers - 1) - 1


def best_chunk(layers: Sequence[LayerTimes]) -> tuple[int, float]:
    """The size of chunks with which backward is quickest, of all there are, and its seconds; the
    smallest such size."""
    found = [(in_turn(joined(layers, size)), size) for size in range(1, max(1, len(layers)) + 1)]
    seconds, size = min(found)
    return size, seconds
