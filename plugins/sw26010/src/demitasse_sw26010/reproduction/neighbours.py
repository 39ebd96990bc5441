"""What printed cells say of the withheld ones beside them: by how much the kernels' counts miss what is
printed of the layer, or of the net, that is nearest."""

from __future__ import annotations

from collections.abc import Mapping

ALIKE: Mapping[str, Mapping[str, str]] = {
    "implicit": {"4_2": "5_1", "4_3": "5_1", "5_2": "5_1", "5_3": "5_1"},
    "explicit": {
        **{"2_2": "2_1", "3_2": "3_1", "3_3": "3_1", "4_2": "4_1", "4_3": "4_1"},
        **{"5_2": "5_1", "5_3": "5_1"},
    },
}
"""Withheld layers of Table II, each with the printed one that is most alike. For implicit GEMM one of
the same channels: rows and columns do not change what it has in LDM at a time. For explicit GEMM the
first one of the same block: the same outputs and places, and half the inputs. (5_2 and 5_3 are of 5_1's
very shape.)"""

RATES: Mapping[str, tuple[int, float]] = {"AlexNet": (256, 94.17), "VGG-16": (64, 6.21)}
"""Images of a node, and the images a second that Table III prints of it."""

SIZES: Mapping[str, float] = {"AlexNet": 232.6, "ResNet-50": 97.7}
"""Model parameter size in MB (section VI.C), which are 2^20 bytes, as the nets' own counts tell."""

NODES = 1024
SPEEDUPS: Mapping[str, float] = {"AlexNet": 715.45, "ResNet-50": 928.15}
"""Section VI.C, figure 10, with 256 images a node and with 32."""

SHARE = 0.1065
"""Of ResNet-50's step that is communication, with 32 images a node (section VI.C, figure 11)."""

SMALL = ("ResNet-50", "GoogleNet")
"""Nets for which section VI.B has one reason: their convolutions have few channels, and so are bound by
memory more than VGG's."""


def layer(name: str, strategy: str, miss: Mapping[tuple[str, str], float]) -> float:
    """By what a withheld layer's simulated seconds are multiplied. ``miss``: of one pass, what is
    printed over what is simulated, by printed layer and strategy."""
    return miss.get((ALIKE[strategy].get(name, ""), strategy), 1.0)


def exchange(net: str) -> float:
    """Seconds of the exchange of a net's gradients on 1,024 nodes, if each byte takes as long as those
    of AlexNet, of which Table III prints a node's step and section VI.C the speedup."""
    batch, rate = RATES["AlexNet"]
    return batch / rate * (NODES / SPEEDUPS["AlexNet"] - 1) * SIZES[net] / SIZES["AlexNet"]


def asked() -> tuple[float, float]:
    """Seconds of a node's own step of ResNet-50, 32 images, that its printed speedup asks for, and its
    printed share of communication. They differ: 1 - 928.15 / 1024 is 9.36%, where 10.65% is printed."""
    seconds = exchange("ResNet-50")
    return seconds / (NODES / SPEEDUPS["ResNet-50"] - 1), seconds * (1 - SHARE) / SHARE


def levels(steps: Mapping[str, float]) -> dict[str, float]:
    """By what each net's simulated step is multiplied for cells that are not printed. ``steps``:
    simulated seconds with the batches of Table III. VGG-19 has VGG-16's layers, and so what its counts
    miss. For the two nets of few channels it is a residual, fitted on ResNet-50's two cells."""
    found = {net: batch / rate / steps[net] for net, (batch, rate) in RATES.items()}
    found["VGG-19"] = found["VGG-16"]
    by_speedup, by_share = asked()
    return found | dict.fromkeys(SMALL, (by_speedup * by_share) ** 0.5 / steps["ResNet-50"])
