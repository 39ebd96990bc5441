"""Long short-term memory, which mainly consists of matrix products (Section IV.A), and states that are
kept from one iteration to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from demitasse import Candidate, Request
from demitasse_sw26010.kernels.convolution import GEMM, TILE_K, TILE_M, TILE_N
from demitasse_sw26010.kernels.inner_product import LINE
from demitasse_sw26010.kernels.program import (
    Place,
    elements,
    given,
    is_single,
    program_candidate,
    up,
)
from demitasse_sw26010.model.ldm import LdmBuffer

PARTS = LdmBuffer("parts", (16, 1024))
SUMS = LdmBuffer("sums", (64 * 16,), "float64")


def lstm(request: Request) -> Iterable[Candidate]:
    """Return the kernel that runs all steps in one program."""
    if not is_single(*request.inputs):
        return ()
    steps, streams, wide = given(request.inputs[0]).shape
    units = wide // 4
    mp, kp, np = up(wide, TILE_M), up(units, TILE_K), up(streams, TILE_N)
    return (
        program_candidate(
            request,
            "gemm for each step",
            ("recurrent", "lstm"),
            (*GEMM, LINE, PARTS),
            (*(("in", i) for i in range(6)), *(("out", i) for i in range(6))),
            (steps, streams, units),
            workspace=4 * (mp * kp + np * (kp + mp) + streams * units),
            in_place=False,
        ),
    )


def lstm_backward(request: Request) -> Iterable[Candidate]:
    """Return the kernel that runs all steps in one program, with one product of all steps for the
    weights' gradient."""
    if not is_single(*request.inputs):
        return ()
    (steps, streams, units), wide = given(request.inputs[0]).shape, given(request.inputs[1]).shape[0]
    kp, mp, np = up(wide, TILE_K), up(units, TILE_M), up(streams, TILE_N)
    rows = steps * streams
    sizes = (
        (rows, wide, up(rows, TILE_K), up(wide, TILE_M)),
        (rows, units, up(rows, TILE_K), up(units, TILE_N)),
        (wide, units, up(wide, TILE_M), up(units, TILE_N)),
    )
    space = kp * mp + np * (kp + mp) + streams * units + sum(size[2] * size[3] for size in sizes)
    places: tuple[Place, ...] = (*(("in", i) for i in range(8)), *(("out", i) for i in range(3)))
    return (
        program_candidate(
            request,
            "gemm for each step",
            ("recurrent", "lstm_backward"),
            (*GEMM, LINE, PARTS, SUMS),
            places,
            (*sizes, steps, streams, units, float(request.attributes["bound"])),
            workspace=4 * space,
            in_place=False,
        ),
    )


def _copy(source: Place, target: Place) -> Callable[[Request], Iterable[Candidate]]:
    def offer(request: Request) -> Iterable[Candidate]:
        if not is_single(*request.inputs):
            return ()
        return (
            program_candidate(
                request,
                "copy",
                ("recurrent", "copied"),
                (PARTS,),
                (source, target),
                (elements(request.inputs[0]),),
                in_place=False,
            ),
        )

    return offer


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        "lstm": lstm,
        "lstm_backward": lstm_backward,
        "recall": _copy(("in", 0), ("out", 0)),
        "remember": _copy(("in", 1), ("in", 0)),
    }
)
