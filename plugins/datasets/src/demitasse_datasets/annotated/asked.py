"""From plain values to an augmentation; the error for an unknown name suggests the nearest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from demitasse import unknown
from demitasse_datasets.annotated.augmentation import Augmentation
from demitasse_datasets.annotated.colours import Distortion
from demitasse_datasets.annotated.resizing import Resizing
from demitasse_datasets.annotated.sampling import Jitter, Sampler, Sampling
from demitasse_datasets.images import LARGEST_IMAGE

_Made = TypeVar("_Made")


def augmentation(given: Mapping[str, Any], seed: int, stream: int) -> Augmentation:
    """Return the augmentation described by mappings of field names. Raises ValueError or TypeError."""
    values = dict(given)
    for name, kind in (("distortion", Distortion), ("resizing", Resizing)):
        if values.get(name) is not None:
            values[name] = _made(kind, values[name])
    jitter = values.pop("jitter", None)
    values["sampling"] = Sampling(
        [_made(Sampler, each) for each in values.get("sampling", ())],
        None if jitter is None else _made(Jitter, jitter),
    )
    made = _made(Augmentation, {**values, "seed": seed, "stream": stream})
    if made.resizing:
        made.resizing.check()
        if made.size is None:
            raise ValueError("FIT_SMALL_SIZE leaves images of several sizes; it needs a crop")
    for side in made.crop or ():
        _check_side("crop", side)
    if made.expansion and not made.expansion[1] >= 1:
        raise ValueError(f"an image is expanded {made.expansion[1]:g} times (valid: 1 or more)")
    return made


def _check_side(what: str, side: int) -> None:
    if not 1 <= side <= LARGEST_IMAGE:
        raise ValueError(f"{what} {side:,} of images (valid: 1 to {LARGEST_IMAGE:,})")


def _made(kind: type[_Made], values: Mapping[str, Any]) -> _Made:
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise ValueError(unknown(f"option of {kind.__name__.lower()}", name, names))
    return kind(**values)
