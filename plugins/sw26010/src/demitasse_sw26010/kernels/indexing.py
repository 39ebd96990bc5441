"""Crops, slices and tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_sw26010.kernels.elementwise import X, blocks
from demitasse_sw26010.kernels.program import given, is_single, program_candidate

Factory = Callable[[Request], Iterable[Candidate]]


def _box(loop: str, whole: str) -> Factory:
    """Return the factory for a tensor and a box in it. ``whole`` says whether the tensor is an input or
    an output."""

    def offer(request: Request) -> Iterable[Candidate]:
        x, y = given(request.inputs[0]), given(request.outputs[0])
        if not is_single(x) or not x.shape:
            return ()
        outer, inner = (x, y) if whole == "in" else (y, x)
        offset = tuple(int(start) for start in request.attributes["offset"])
        return (
            program_candidate(
                request,
                request.operation.name,
                ("indexing", loop),
                (X,),
                (("in", 0), ("out", 0)),
                (outer.shape, offset, inner.shape),
                in_place=False,
            ),
        )

    return offer


def pieces(request: Request) -> Iterable[Candidate]:
    """Return the kernel that copies x's rows to the pieces to which they belong."""
    shapes = [tuple(shape) for shape in request.attributes["shapes"]]
    whole = given(request.inputs[0]).shape
    return blocks(
        request, shapes, whole, [(("in", 0), ("out", i)) for i in range(len(shapes))], join=False
    )


def _tiles(loop: str, single: str) -> Factory:
    """Return the factory for copies along an axis. ``single`` says whether the tensor that is copied is
    an input or an output."""

    def offer(request: Request) -> Iterable[Candidate]:
        x, y = given(request.inputs[0]), given(request.outputs[0])
        if not is_single(x):
            return ()
        shape, axis = (x if single == "in" else y).shape, request.attributes["axis"]
        numbers = (prod(shape[:axis]), prod(shape[axis:]), int(request.attributes["tiles"]))
        places = (("in", 0), ("out", 0))
        name, ldm = request.operation.name, (X,)
        return (
            program_candidate(request, name, ("indexing", loop), ldm, places, numbers, in_place=False),
        )

    return offer


FACTORIES: Mapping[str, Factory] = MappingProxyType(
    {
        "crop": _box("crop", "in"),
        "crop_backward": _box("crop_backward", "out"),
        "slice": pieces,
        "tile": _tiles("tile", "in"),
        "tile_backward": _tiles("tile_backward", "out"),
    }
)
