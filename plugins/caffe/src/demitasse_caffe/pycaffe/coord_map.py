"""Crops that align tops of a net written in Python (a NetSpec)."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse import ModelError
from demitasse_caffe.coordinates import Made, Map, map_between
from demitasse_caffe.pycaffe.errors import also
from demitasse_caffe.pycaffe.net_spec import Top, layers, to_proto


def crop(top_from: Top, top_to: Top) -> Any:
    """Return a Crop layer that cuts ``top_from`` to the size of ``top_to``, at the place where
    ``top_to`` lies in it. Raise ModelError, which is also an AssertionError as in Caffe, if the pixels
    of the two have different spacing, or if the offset is negative or not a whole number of pixels."""
    axis, a, b = coord_map_from_to(top_from, top_to)
    if not np.allclose(a, 1):
        raise also(
            ModelError(f"cannot crop: pixels are {a.tolist()} times as far apart"), AssertionError
        )
    if (b > 1e-9).any() or not np.allclose(b, np.round(b)):
        told = f"cannot crop: the offset is {(-b).tolist()}, not whole pixels, 0 or more"
        raise also(ModelError(told), AssertionError)
    offset = np.round(-b).astype(int).tolist()
    return layers.Crop(
        top_from, top_to, crop_param={"axis": 2 if axis is None else axis + 1, "offset": offset}
    )


def coord_map_from_to(top_from: Top, top_to: Top) -> Map:
    """Return the map from the coordinates of one top to those of another, through their nearest common
    ancestor. Raise ModelError, which is also a RuntimeError, if they have no common ancestor or a layer
    in between does not map coordinates."""
    try:
        found = map_between(top_from, top_to, _made)
    except ValueError as error:
        raise also(ModelError(str(error)), RuntimeError) from error
    if found is None:
        told = "the two tops do not come from a common one through layers that map coordinates"
        raise also(ModelError(told), RuntimeError)
    return found


def _made(top: Top) -> Made:
    return Made(top.fn.type_name, lambda: to_proto(top).layer[-1], top.fn.inputs)
