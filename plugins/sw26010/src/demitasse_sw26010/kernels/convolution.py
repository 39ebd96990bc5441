"""Convolution, explicit and implicit, forward and both backwards: the two are offered, the cheaper is
taken, or a tuner tries both (Section VI.A)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from demitasse import PLAIN, Candidate, Layout, Request
from demitasse_sw26010.kernels.program import given, is_single, program_candidate, up
from demitasse_sw26010.model.figures import LDM_BYTES
from demitasse_sw26010.model.ldm import LdmBuffer

RCNB = Layout("RCNB", (2, 3, 1, 0))
"""Rows, columns, channels, batch: the layout of implicit GEMM (Section IV.C)."""

TILE_M, TILE_N, TILE_K, PANEL, COLUMNS, BLOCK = 256, 64, 256, 1536, 256, 512
"""As loops/gemm.py and loops/implicit.py have them, which only binding and counting import."""

LEAST_FORWARD, LEAST_BACKWARD = 64, 128
"""Channels that implicit GEMM needs: below, LDM holds too little for vectors and messages (IV.B.2);
where Table II has no figure for it, it is not offered."""

COLUMNS_BYTES = 32 * 2**20
"""Of images' columns that lie together for the weights' gradient, where one image's are fewer. Section
IV.B blocks the batch and does not say how far; chosen with Table II's printed cells in sight."""

GEMM = (
    LdmBuffer("a", (TILE_M, TILE_K), copies=2),
    LdmBuffer("b", (TILE_K, TILE_N), copies=2),
    LdmBuffer("result", (TILE_M, PANEL), "float64"),
)
Shape = tuple[int, ...]


def _shape(x: Shape, w: Shape, y: Shape, request: Request) -> Shape | None:
    """N, C, H, W, K, R, S, P, Q, strides, pads, dilations, groups; None for what is no image."""
    about = request.attributes
    if len(x) != 4:
        return None
    pairs = (*about["stride"], *about["pad"], *about["dilation"])
    return (*x, w[0], *w[2:], *y[2:], *pairs, about["groups"])


def forward(request: Request) -> Iterable[Candidate]:
    """Explicit, then implicit."""
    x, w, y = given(request.inputs[0]), given(request.inputs[1]), given(request.outputs[0])
    shape = _shape(x.shape, w.shape, y.shape, request)
    if shape is None or not is_single(*request.inputs):
        return
    group, groups = shape[4] // shape[15], shape[15]
    depth, plane = shape[1] // groups * shape[5] * shape[6], shape[7] * shape[8]
    mk, kp, np, mp = up(group, TILE_K), up(depth, TILE_K), up(plane, TILE_N), up(group, TILE_M)
    yield program_candidate(
        request,
        "explicit gemm",
        ("explicit", "forward"),
        _explicit_ldm(shape),
        (("in", 0), ("in", 1), ("in", 2), ("out", 0)),
        (shape,),
        workspace=4 * (groups * mk * kp + (kp + mp) * np),
        in_place=False,
    )
    if _implicit(shape, LEAST_FORWARD):
        yield program_candidate(
            request,
            "implicit gemm",
            ("implicit", "convolve"),
            _blocks(shape[1], shape[4]),
            (("in", 0), ("in", 1), ("in", 2), ("out", 0)),
            (shape, False),
            workspace=4 * shape[1] * shape[4] * shape[5] * shape[6],
            layouts=((RCNB, PLAIN, PLAIN), (RCNB,)),
            in_place=False,
        )


def backward_data(request: Request) -> Iterable[Candidate]:
    """Explicit, then implicit."""
    dy, w, dx = given(request.inputs[0]), given(request.inputs[1]), given(request.outputs[0])
    shape = _shape(dx.shape, w.shape, dy.shape, request)
    if shape is None or not is_single(*request.inputs):
        return
    group, groups = shape[4] // shape[15], shape[15]
    depth, plane = shape[1] // groups * shape[5] * shape[6], shape[7] * shape[8]
    kp, mp, np = up(group, TILE_K), up(depth, TILE_M), up(plane, TILE_N)
    yield program_candidate(
        request,
        "explicit gemm",
        ("explicit", "backward_data"),
        _explicit_ldm(shape),
        (("in", 0), ("in", 1), ("out", 0)),
        (shape,),
        workspace=4 * (groups * kp * mp + (kp + mp) * np),
        in_place=False,
    )
    if _implicit(shape, LEAST_BACKWARD):
        yield program_candidate(
            request,
            "implicit gemm",
            ("implicit", "convolve"),
            _blocks(shape[4], shape[1]),
            (("in", 0), ("in", 1), ("in", 2), ("out", 0)),
            (shape, True),
            workspace=4 * shape[1] * shape[4] * shape[5] * shape[6],
            layouts=((RCNB, PLAIN), (RCNB,)),
            in_place=False,
        )


def backward_weights(request: Request) -> Iterable[Candidate]:
    """Explicit, then implicit."""
    dy, x, dw = given(request.inputs[0]), given(request.inputs[1]), given(request.outputs[0])
    shape = _shape(x.shape, dw.shape, dy.shape, request)
    if shape is None or not is_single(*request.inputs):
        return
    group = shape[4] // shape[15]
    depth, plane = shape[1] // shape[15] * shape[5] * shape[6], shape[7] * shape[8]
    together = max(1, min(shape[0], COLUMNS_BYTES // (4 * depth * plane)))
    kp, mp, np = up(together * plane, TILE_K), up(group, TILE_M), up(depth, TILE_N)
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
        outputs, inputs = up(min(shape[4], BLOCK), 8), up(min(shape[1], BLOCK), 8)
        while shape[6] * outputs * inputs * 8 + (outputs + inputs) * COLUMNS * 4 > 64 * LDM_BYTES:
            inputs = up(inputs // 2, 8)
        yield program_candidate(
            request,
            "implicit gemm",
            ("implicit", "weigh"),
            (
                LdmBuffer("dw", (shape[6], outputs, inputs), "float64"),
                LdmBuffer("x", (COLUMNS, inputs)),
                LdmBuffer("dy", (outputs, COLUMNS)),
            ),
            places,
            (shape,),
            layouts=((RCNB, RCNB), (PLAIN, PLAIN)),
            in_place=False,
        )


def _explicit_ldm(shape: Shape) -> tuple[LdmBuffer, ...]:
    """The product's tiles, a row of the image and a line of columns on each CPE; what those need is
    taken from the panel of the result."""
    row, line = LdmBuffer("row", (64 * shape[3],)), LdmBuffer("line", (64 * max(shape[8], 64),))
    room = LDM_BYTES - GEMM[0].nbytes - GEMM[1].nbytes - row.nbytes - line.nbytes
    panel = max(1, min(PANEL, room // (TILE_M // 8) // TILE_N * TILE_N))
    return (*GEMM[:2], LdmBuffer("result", (TILE_M, panel), "float64"), row, line)


def _implicit(shape: Shape, least: int) -> bool:
    """Whether the mesh can share the batch evenly and has channels enough."""
    plain = shape[13:] == (1, 1, 1)
    fits = shape[0] % 8 == 0 and (COLUMNS % shape[0] == 0 or shape[0] % COLUMNS == 0)
    return plain and fits and min(shape[1], shape[4]) >= least and shape[6] <= 7


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
