"""Convolution, explicit and implicit, forward and both backward passes. Both are offered; the cheaper
one is used, or a tuner tries both (Section VI.A)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from demitasse import PLAIN, Candidate, Layout, Request
from demitasse_sw26010.kernels.program import given, is_single, program_candidate, up
from demitasse_sw26010.model.figures import LDM_BYTES
from demitasse_sw26010.model.ldm import LdmBuffer

RCNB = Layout("RCNB", (2, 3, 1, 0))
"""The layout of implicit GEMM (Section IV.C): rows, columns, channels, batch."""

TILE_M, TILE_N, TILE_K, PANEL, COLUMNS, BLOCK = 256, 64, 256, 1536, 256, 512
"""As in loops/gemm.py and loops/implicit.py, which only binding and counting import."""

LEAST_FORWARD, LEAST_BACKWARD = 64, 128
"""The minimum number of channels for implicit GEMM. With fewer, LDM holds too little for vectors and
messages (IV.B.2). It is not offered where Table II has no figure for it."""

COLUMNS_BYTES = 32 * 2**20
"""The bytes of columns that are put together for the weights' gradient, from several images if one has
fewer. Section IV.B blocks the batch but does not say by how much; this was chosen knowing Table II's
printed cells."""

GEMM = (
    LdmBuffer("a", (TILE_M, TILE_K), copies=2),
    LdmBuffer("b", (TILE_K, TILE_N), copies=2),
    LdmBuffer("result", (TILE_M, PANEL), "float64"),
)


class Geometry(NamedTuple):
    """The numbers that the loops need about a convolution of images, in this order: x is (n, c, h, w),
    the weights are (k, channels of a group, r, s), and y is (n, k, p, q)."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    p: int
    q: int
    stride_h: int
    stride_w: int
    pad_h: int
    pad_w: int
    dilation_h: int
    dilation_w: int
    groups: int

    @property
    def outputs(self) -> int:
        """Output channels of a group."""
        return self.k // self.groups

    @property
    def depth(self) -> int:
        """Rows of a group's columns: one for each of its input channels and taps."""
        return self.c // self.groups * self.r * self.s

    @property
    def plane(self) -> int:
        """Columns of an image: one for each place of y."""
        return self.p * self.q


def _geometry(
    x: tuple[int, ...], w: tuple[int, ...], y: tuple[int, ...], request: Request
) -> Geometry | None:
    """Return None unless these are images and all operands are float32."""
    about = request.attributes
    if len(x) != 4 or not is_single(*request.inputs):
        return None
    pairs = (*about["stride"], *about["pad"], *about["dilation"])
    return Geometry._make((*x, w[0], *w[2:], *y[2:], *pairs, about["groups"]))


def forward(request: Request) -> Iterable[Candidate]:
    """Yield explicit GEMM, then implicit."""
    x, w, y = given(request.inputs[0]), given(request.inputs[1]), given(request.outputs[0])
    shape = _geometry(x.shape, w.shape, y.shape, request)
    if shape is None:
        return
    mk, mp = up(shape.outputs, TILE_K), up(shape.outputs, TILE_M)
    kp, np = up(shape.depth, TILE_K), up(shape.plane, TILE_N)
    yield program_candidate(
        request,
        "explicit gemm",
        ("explicit", "forward"),
        _explicit_ldm(shape),
        (("in", 0), ("in", 1), ("in", 2), ("out", 0)),
        (shape,),
        workspace=4 * (shape.groups * mk * kp + (kp + mp) * np),
        in_place=False,
    )
    if _implicit(shape, LEAST_FORWARD):
        yield program_candidate(
            request,
            "implicit gemm",
            ("implicit", "convolve"),
            _blocks(shape.c, shape.k),
            (("in", 0), ("in", 1), ("in", 2), ("out", 0)),
            (shape, False),
            workspace=4 * shape.c * shape.k * shape.r * shape.s,
            layouts=((RCNB, PLAIN, PLAIN), (RCNB,)),
            in_place=False,
        )


def backward_data(request: Request) -> Iterable[Candidate]:
    """Yield explicit GEMM, then implicit."""
    dy, w, dx = given(request.inputs[0]), given(request.inputs[1]), given(request.outputs[0])
    shape = _geometry(dx.shape, w.shape, dy.shape, request)
    if shape is None:
        return
    kp, mp, np = up(shape.outputs, TILE_K), up(shape.depth, TILE_M), up(shape.plane, TILE_N)
    yield program_candidate(
        request,
        "explicit gemm",
        ("explicit", "backward_data"),
        _explicit_ldm(shape),
        (("in", 0), ("in", 1), ("out", 0)),
        (shape,),
        workspace=4 * (shape.groups * kp * mp + (kp + mp) * np),
        in_place=False,
    )
    if _implicit(shape, LEAST_BACKWARD):
        yield program_candidate(
            request,
            "implicit gemm",
            ("implicit", "convolve"),
            _blocks(shape.k, shape.c),
            (("in", 0), ("in", 1), ("in", 2), ("out", 0)),
            (shape, True),
            workspace=4 * shape.c * shape.k * shape.r * shape.s,
            layouts=((RCNB, PLAIN), (RCNB,)),
            in_place=False,
        )


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Yield explicit GEMM, then implicit."""
    dy, x, dw = given(request.inputs[0]), given(request.inputs[1]), given(request.outputs[0])
    shape = _geometry(x.shape, dw.shape, dy.shape, request)
    if shape is None:
        return
    together = _together(shape)
    kp, mp, np = up(together * shape.plane, TILE_K), up(shape.outputs, TILE_M), up(shape.depth, TILE_N)
    places = (("in", 0), ("in", 1), ("out", 0), ("out", 1))
    yield program_candidate(
        request,
        "explicit gemm",
        ("explicit", "backward_weights"),
        _explicit_ldm(shape),
        places,
        (shape, together),
        workspace=4 * (mp * kp + np * kp + mp * np),
        in_place=False,
    )
    if _implicit(shape, LEAST_BACKWARD):
        outputs, inputs = up(min(shape.k, BLOCK), 8), up(min(shape.c, BLOCK), 8)
        while shape.s * outputs * inputs * 8 + (outputs + inputs) * COLUMNS * 4 > 64 * LDM_BYTES:
            inputs = up(inputs // 2, 8)
        yield program_candidate(
            request,
            "implicit gemm",
            ("implicit", "weigh"),
            (
                LdmBuffer("dw", (shape.s, outputs, inputs), "float64"),
                LdmBuffer("x", (COLUMNS, inputs)),
                LdmBuffer("dy", (outputs, COLUMNS)),
            ),
            places,
            (shape,),
            layouts=((RCNB, RCNB), (PLAIN, PLAIN)),
            in_place=False,
        )


def _together(shape: Geometry) -> int:
    """Return how many images the weights' gradient takes at once, whose columns im2col puts side by
    side. A convolution without im2col takes one at a time, because its columns are the images
    themselves."""
    if (shape.r, shape.s, shape.p, shape.q) == (1, 1, shape.h, shape.w):
        return 1
    return max(1, min(shape.n, COLUMNS_BYTES // (4 * shape.depth * shape.plane)))


def _explicit_ldm(shape: Geometry) -> tuple[LdmBuffer, ...]:
    """Return the LDM of the product's tiles, a row of the image and a line of columns on each CPE. The
    latter two take their memory from the result's panel."""
    row, line = LdmBuffer("row", (64 * shape.w,)), LdmBuffer("line", (64 * max(shape.q, 64),))
    room = LDM_BYTES - GEMM[0].nbytes - GEMM[1].nbytes - row.nbytes - line.nbytes
    panel = max(1, min(PANEL, room // (TILE_M // 8) // TILE_N * TILE_N))
    return (*GEMM[:2], LdmBuffer("result", (TILE_M, panel), "float64"), row, line)


def _implicit(shape: Geometry, least: int) -> bool:
    """Return whether the mesh can divide the batch evenly and there are enough channels."""
    plain = (shape.dilation_h, shape.dilation_w, shape.groups) == (1, 1, 1)
    fits = shape.n % 8 == 0 and (COLUMNS % shape.n == 0 or shape.n % COLUMNS == 0)
    return plain and fits and min(shape.c, shape.k) >= least and shape.s <= 7


def _blocks(inputs: int, outputs: int) -> tuple[LdmBuffer, ...]:
    inputs, outputs = up(min(inputs, BLOCK), 8), up(min(outputs, BLOCK), 8)
    return (
        LdmBuffer("w", (outputs, inputs)),
        LdmBuffer("x", (inputs, COLUMNS)),
        LdmBuffer("y", (outputs, COLUMNS), "float64"),
    )


FACTORIES: Mapping[str, Callable[[Request], Iterable[Candidate]]] = MappingProxyType(
    {
        "convolution": forward,
        "convolution_backward_data": backward_data,
        "convolution_backward_weights": backward_weights,
    }
)
