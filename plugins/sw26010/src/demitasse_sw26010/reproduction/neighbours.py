"""What printed cells say about withheld ones: by how much the kernels' counts miss the printed figure of
the most similar layer or net."""

from __future__ import annotations

from collections.abc import Mapping

ALIKE: Mapping[str, Mapping[str, str]] = {
    "implicit": {"4_2": "5_1", "4_3": "5_1", "5_2": "5_1", "5_3": "5_1"},
    "explicit": {
        **{"2_2": "2_1", "3_2": "3_1", "3_3": "3_1", "4_2": "4_1", "4_3": "4_1"},
        **{"5_2": "5_1", "5_3": "5_1"},
    },
}
"""Withheld layers of Table II, each with the most similar printed one. For implicit GEMM, that is one
with the same channels, because rows and columns do not change what is in LDM at a time. For explicit
GEMM, it is the first one of the same block, with the same outputs and places and half the inputs. (5_2
and 5_3 have exactly 5_1's shape.)"""

RATES: Mapping[str, tuple[int, float]] = {"AlexNet": (256, 94.17), "VGG-16": (64, 6.21)}
"""A node's images, and the images per second that Table III prints for it."""

SIZES: Mapping[str, float] = {"AlexNet": 232.6, "ResNet-50": 97.7}
"""The size of the model's parameters in MB (section VI.C). These are 2^20 bytes, as the nets' own counts
show."""

NODES = 1024
SPEEDUPS: Mapping[str, float] = {"AlexNet": 715.45, "ResNet-50": 928.15}
"""Speedups from section VI.C, figure 10, with 256 images and with 32 images per node."""

SHARE = 0.1065
"""The share of communication in ResNet-50's step, with 32 images per node (section VI.C, figure 11)."""

SMALL = ("ResNet-50", "GoogleNet")
"""Nets for which section VI.B gives the same reason: their convolutions have few channels, and so are
more bound by memory than VGG's."""


def layer(name: str, strategy: str, miss: Mapping[tuple[str, str], float]) -> float:
    """Return the factor for a withheld layer's simulated seconds. ``miss`` is the ratio of printed to
    simulated seconds in one pass, by printed layer and strategy."""
    return miss.get((ALIKE[strategy].get(name, ""), strategy), 1.0)


def exchange(net: str) -> float:
    """Return the seconds that a net's exchange of gradients takes on 1,024 nodes, if each byte takes as
    long as AlexNet's. For AlexNet, Table III prints a node's step and section VI.C the speedup."""
    batch, rate = RATES["AlexNet"]
    return batch / rate * (NODES / SPEEDUPS["AlexNet"] - 1) * SIZES[net] / SIZES["AlexNet"]


def asked() -> tuple[float, float]:
    """Return the seconds of a node's own step of ResNet-50, with 32 images, as they follow from its
    printed speedup and from its printed share of communication. They differ: 1 - 928.15 / 1024 is 9.36%,
    but 10.65% is printed."""
    seconds = exchange("ResNet-50")
    return seconds / (NODES / SPEEDUPS["ResNet-50"] - 1), seconds * (1 - SHARE) / SHARE


def levels(steps: Mapping[str, float]) -> dict[str, float]:
    """Return the factor for each net's simulated step, for cells that are not printed. ``steps`` are
    simulated seconds with the batches of Table III. VGG-19 has VGG-16's layers, and so its factor. For
    the two nets of few channels, the factor is a residual, fitted on ResNet-50's two cells."""
    found = {net: batch / rate / steps[net] for net, (batch, rate) in RATES.items()}
    found["VGG-19"] = found["VGG-16"]
    by_speedup, by_share = asked()
    return found | dict.fromkeys(SMALL, (by_speedup * by_share) ** 0.5 / steps["ResNet-50"])
