"""Crops that align what layers of a net that is written as Python have made."""

from __future__ import annotations

from typing import Any

import numpy as np

from demitasse import ModelError
from demitasse_caffe.coordinates import Made, Map, map_between
from demitasse_caffe.pycaffe.errors import also
from demitasse_caffe.pycaffe.net_spec import Top, layers, to_proto


def crop(top_from: Top, top_to: Top) -> Any:
    """A Crop of ``top_from`` to where ``top_to`` lies in it, of its size. Raises ModelError when their
    pixels are not the same distance apart, or no whole number of pixels would be cut off; an
    AssertionError, too, as in Caffe."""
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
    """The map from the coordinates of one top to another's, by the nearest top that both are made of.
    Raises ModelError, a RuntimeError, too, when there is none, or a layer between has no such map."""
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
