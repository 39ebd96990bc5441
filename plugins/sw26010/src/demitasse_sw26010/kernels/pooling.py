"""Pooling forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from demitasse import Candidate, Request, TensorSpec
from demitasse_sw26010.kernels.program import Place, given, is_single, program_candidate
from demitasse_sw26010.model.ldm import LdmBuffer

ROOM = 6144
"""As in loops/pooling.py."""


def _offer(
    loop: str, image: Place, plane: Place, places: tuple[Place, ...]
) -> Callable[..., Iterable[Candidate]]:
    def offer(request: Request) -> Iterable[Candidate]:
        sides: dict[str, tuple[TensorSpec | None, ...]] = {"in": request.inputs, "out": request.outputs}
        x, y = given(sides[image[0]][image[1]]), given(sides[plane[0]][plane[1]])
        about = request.attributes
        if len(x.shape) != 4 or not is_single(x, y) or about["kernel"][0] * x.shape[3] > 64 * ROOM:
            return ()
        numbers = (*x.shape[2:], *y.shape[2:], *about["kernel"], *about["stride"], *about["pad"])
        return (
            program_candidate(
                request,
                request.operation.name,
                ("pooling", loop),
                (LdmBuffer("rows", (64 * ROOM,), copies=2),),
                places,
                (x.shape[0] * x.shape[1], numbers),
                in_place=False,
            ),
        )

    return offer


_X, _Y, _Z, _W = ("in", 0), ("out", 0), ("out", 1), ("in", 1)
FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        "pooling_max": _offer("largest", _X, _Y, (_X, _Y, _Z)),
        "pooling_max_backward": _offer("largest_backward", _Y, _X, (_X, _W, _Y)),
        "pooling_average": _offer("average", _X, _Y, (_X, _Y)),
        "pooling_average_backward": _offer("average_backward", _Y, _X, (_X, _Y)),
    }
)
