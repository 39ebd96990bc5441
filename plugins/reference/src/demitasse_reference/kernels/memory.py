"""Views, running totals, and images turned into blobs; ``reorder`` is in the package's ``__init__``."""

from __future__ import annotations

import numpy as np

from demitasse import crop_and_mirror
from demitasse_reference.kernels.arrays import Extents, Kernels, Reals, Values


def reshape(x: Reals, *, shape: Extents) -> Reals:
    """For direct requests; a plan makes the view itself."""
    return x.reshape(shape)


def fill(x: Values, *, value: float) -> float:
    return value


def accumulate(total: Reals, x: Reals) -> Reals:
    return total + x


def image_transform(
    x: Values,
    mean: Reals | None,
    iteration: Values,
    sample: Values,
    *,
    scale: float,
    crop: int,
    mirror: bool,
    random: bool,
    seed: int,
    stream: int,
) -> Reals:
    whole = (x.astype(np.float64) - (0.0 if mean is None else mean)) * scale
    if not crop and not (mirror and random):
        return whole
    samples, _, height, width = x.shape
    rows, columns = (height - crop, width - crop) if crop else (0, 0)
    places: Values = np.tile((rows // 2, columns // 2, 0), (samples, 1))
    if random:
        places = crop_and_mirror(seed, stream, int(iteration[0]), int(sample[0]), samples, rows, columns)
    y = []
    for image, (top, left, flipped) in zip(whole, places, strict=True):
        part = image[:, top : top + (crop or height), left : left + (crop or width)]
        y.append(part[:, :, ::-1] if mirror and flipped else part)
    return np.stack(y)


KERNELS: Kernels = {
    "reshape": reshape,
    "fill": fill,
    "accumulate": accumulate,
    "image_transform": image_transform,
}
