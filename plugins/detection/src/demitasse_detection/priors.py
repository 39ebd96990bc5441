"""The boxes relative to which a net locates objects. Liu et al. 2016, *SSD: Single Shot MultiBox
Detector*, section 2.2, *Choosing scales and aspect ratios for default boxes*; Zhang et al. 2017,
*FaceBoxes*, section 3.3; Liao et al. 2018, *TextBoxes++*, section 3.2."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_detection.base import DetectionLayer
from demitasse_detection.boxes import Reals


class PriorBox(DetectionLayer):
    """The boxes relative to which predictions are made at each place of a feature map (the first
    bottom), in an image (the second). The top is 1 x 2 x 4 P: boxes as fractions of the image, and their
    variances. Only the bottoms' shapes matter."""

    name = "PriorBox"
    bottoms = 2

    def expand(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> Tensor:
        about, (features, image) = layer.parameters.prior_box_param, bottoms
        if len(features.shape) != 4 or len(image.shape) != 4:
            raise ValueError(f"its bottoms {features!r} and {image!r} are not images")
        places = features.shape[2:]
        whole = _pair(about, "img_size", ("img_h", "img_w")) or image.shape[2:]
        step = _pair(about, "step", ("step_h", "step_w"))
        if step is None:
            step = (whole[0] / places[0], whole[1] / places[1])
        rows, columns = ((np.arange(n) + about.offset) * s for n, s in zip(places, step, strict=True))
        y, x = (each[..., None, None] for each in np.meshgrid(rows, columns, indexing="ij"))
        beside, sides, inside = self.boxes(about, (1 - about.offset) * step[0])
        half = sides / 2 / whole[::-1]
        centre = (np.concatenate([x, y], -1) + beside) / whole[::-1]
        boxes = np.concatenate([centre - half, centre + half], -1)
        kept = np.ones_like(inside) if about.clip else inside
        boxes[:, :, kept] = boxes[:, :, kept].clip(0, 1)
        variances = np.broadcast_to(_variances(about), boxes.shape)
        values = np.stack([boxes.reshape(-1), variances.reshape(-1)])[None]
        return graph.constant(layer.tops[0], values)

    def boxes(self, about: Any, below: float) -> tuple[Reals, Reals, NDArray[np.bool_]]:
        """Return, for the boxes at each place, the offsets of their centres (P, 2), their widths and
        heights (P, 2) in pixels, and which are clipped at the image's sides. Dense boxes come first.
        ``below`` is how far below a place TextBoxes++ repeats each box. Raise ValueError."""
        if len(about.width) or len(about.height):
            raise ValueError("prior_box_param { width height } belong to the type PriorBoxClustered")
        dense, sizes = _dense(about), _sizes(about)
        if not dense and not sizes:
            raise ValueError("prior_box_param { min_size } is not given")
        times = 2 if about.denser_prior_boxes else 1
        beside = [at for at, _ in dense] + [(0.0, below * time) for _ in sizes for time in range(times)]
        sides = [size for _, size in dense] + [size for size in sizes for _ in range(times)]
        return np.array(beside), np.array(sides), np.arange(len(sides)) < len(dense)


class PriorBoxClustered(PriorBox):
    """PriorBox with a box for each ``width`` and the corresponding ``height``. From OpenVINO's fork,
    whose nets get them from clusters of the objects' sizes; it is the operation of this name in
    OpenVINO's opset1."""

    name = "PriorBoxClustered"

    def boxes(self, about: Any, below: float) -> tuple[Reals, Reals, NDArray[np.bool_]]:
        sides = list(about.width), list(about.height)
        if len(sides[0]) != len(sides[1]) or not sides[0]:
            raise ValueError(
                f"has {len(sides[0])} width and {len(sides[1])} height; give as many of both"
            )
        for field in ("min_size", "max_size", "aspect_ratio", "fixed_size"):
            if getattr(about, field):
                raise ValueError(
                    f"prior_box_param {{ {field} }} belongs to PriorBox; give width and height here"
                )
        if not 0 < min(map(min, sides)) <= max(map(max, sides)) < math.inf:
            raise ValueError("width and height must be numbers above 0")
        return np.zeros((1, 2)), np.array(sides).T, np.zeros(len(sides[0]), bool)


def _dense(about: Any) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return FaceBoxes' boxes: ``density`` by ``density`` boxes of each ``fixed_size`` and ratio,
    equally spaced, each as the offset of its centre from the place, and its sides. Zhang et al. 2017,
    *FaceBoxes*, section 3.3; divisions are integer divisions, as in the fork."""
    sizes, densities, fixed = list(about.fixed_size), list(about.density), list(about.fixed_ratio)
    if len(densities) != len(sizes):
        raise ValueError(f"has {len(densities)} density for {len(sizes)} fixed_size; give one for each")
    if fixed and about.aspect_ratio:
        raise ValueError("fixed_ratio and aspect_ratio cannot be combined")
    _check_pixels(fixed_size=sizes, density=densities)
    _check_ratios("fixed_ratio", fixed)
    found = []
    for size, density in zip(sizes, densities, strict=True):
        count, apart = int(density), int(size / int(density))
        at = [apart / 2 - int(size) // 2 + number * apart for number in range(count)]
        forms = [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in fixed or _ratios(about)]
        if not fixed:
            forms.insert(0, (float(int(size)),) * 2)
        found += [((x, y), form) for form in forms for y in at for x in at]
    return found


def _sizes(about: Any) -> list[tuple[float, float]]:
    """Return the width and height of SSD's boxes, which its fork computes from whole pixels."""
    least, most = list(about.min_size), list(about.max_size)
    if len(most) not in (0, len(least)):
        raise ValueError(f"has {len(most)} max_size for {len(least)} min_size; give none, or one each")
    for low, high in zip(least, most or [math.inf] * len(least), strict=True):
        if not 0 < low < high:
            raise ValueError(f"min_size {low:g} and max_size {high:g} must rise from 0")
    _check_pixels(min_size=least, max_size=most)
    ratios = _ratios(about)
    found = []
    for number, size in enumerate(map(int, least)):
        found.append((float(size), float(size)))
        if most:
            found.append((math.sqrt(size * int(most[number])),) * 2)
        found += [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in ratios]
    return found


def _ratios(about: Any) -> list[float]:
    """Return the ratios of width to height, each once, without 1, which every size has."""
    found = [1.0]
    _check_ratios("aspect_ratio", about.aspect_ratio)
    for ratio in about.aspect_ratio:
        if all(abs(ratio - other) >= 1e-6 for other in found):
            found += [ratio, 1 / ratio] if about.flip else [ratio]
    return found[1:]


def _check_ratios(name: str, ratios: Iterable[float]) -> None:
    for ratio in ratios:
        if not 0 < ratio < math.inf:
            raise ValueError(f"{name} {ratio:g} is not a positive number")


def _check_pixels(**fields: Iterable[float]) -> None:
    """Raise ValueError for a number that is infinite, or below 1, since it is truncated."""
    for name, values in fields.items():
        for value in values:
            if not 1 <= value < math.inf:
                raise ValueError(f"{name} {value:g} is not 1 or more")


def _variances(about: Any) -> list[float]:
    given = list(about.variance) or [0.1]
    if len(given) not in (1, 4) or min(given) <= 0:
        raise ValueError(f"variance {given} is not one positive number or four")
    return given


def _pair(about: Any, one: str, two: tuple[str, str]) -> tuple[float, float] | None:
    """Return what one field gives for both height and width, or what two fields give; None
    if none is given."""
    given = [name for name in (one, *two) if about.HasField(name)]
    if not given:
        return None
    if given not in ([one], list(two)):
        raise ValueError(f"give {one}, or {two[0]} and {two[1]}; given: {', '.join(given)}")
    found = [getattr(about, name) for name in given]
    if min(found) <= 0:
        raise ValueError(f"{' and '.join(given)} {min(found):g} is not above 0")
    return found[0], found[-1]
