"""Caffe's pooling windows as ONNX operators, exactly.

Caffe's rounding up is written as padding at the end, so that it does not matter how a reader rounds.
Caffe's averages count the padding, but not what lies beyond it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from demitasse import Node, Tensor

if TYPE_CHECKING:
    from demitasse_onnx.export import Exporter


def pooling_max(out: Exporter, node: Node) -> None:
    """Write a maximum; padding is never the maximum."""
    x = _x(node)
    if _whole(node):
        out.emit(node, "GlobalMaxPool", [out.name(x)], last=True)
        return
    pad = tuple(node.attributes["pad"])
    out.emit(node, "MaxPool", [out.name(x)], last=True, pads=[*pad, *_behind(node)], **_extents(node))


def pooling_average(out: Exporter, node: Node) -> None:
    """Write an average. The size of a window includes ``pad`` zeros beyond x, but not the part of the
    last window beyond those. Therefore x is padded with zeros, followed by an average that excludes
    padding. Some readers ignore count_include_pad (OpenCV 4.14)."""
    x = _x(node)
    if _whole(node):
        out.emit(node, "GlobalAveragePool", [out.name(x)], last=True)
        return
    pad, behind, name = tuple(node.attributes["pad"]), _behind(node), out.name(x)
    inner = [min(more, p) for more, p in zip(behind, pad, strict=True)]
    if any((*pad, *inner)):
        zeros = np.array([0, 0, *pad, 0, 0, *inner], np.int64)
        name = out.emit(node, "Pad", [name, out.constant(f"{node.layer}.pads", zeros)])
    rest = [more - p for more, p in zip(behind, inner, strict=True)]
    out.emit(node, "AveragePool", [name], last=True, pads=[*(0 for _ in pad), *rest], **_extents(node))


def _x(node: Node) -> Tensor:
    x = node.inputs[0]
    assert x is not None
    return x


def _outputs(node: Node) -> tuple[int, ...]:
    y = node.outputs[0]
    assert y is not None
    return y.shape[2:]


def _extents(node: Node) -> dict[str, list[int]]:
    return {"kernel_shape": list(node.attributes["kernel"]), "strides": list(node.attributes["stride"])}


def _whole(node: Node) -> bool:
    """Return whether a single window covers exactly x."""
    return tuple(node.attributes["kernel"]) == _x(node).shape[2:] and not any(node.attributes["pad"])


def _behind(node: Node) -> tuple[int, ...]:
    """Return the padding needed at the end of each axis for the actual number of windows."""
    names = ("kernel", "stride", "pad")
    axes = zip(_x(node).shape[2:], _outputs(node), *(node.attributes[n] for n in names), strict=True)
    return tuple(max(0, (count - 1) * s + k - n - p) for n, count, k, s, p in axes)
