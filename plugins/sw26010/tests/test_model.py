"""The core group: LDM, DMA and register messages; and counting is what computing does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from demitasse import Place, PlanError, Request, TensorSpec, load_numba
from demitasse.operations import VOCABULARY
from demitasse_sw26010.kernels import candidates
from demitasse_sw26010.kernels.program import PLACES, Absent
from demitasse_sw26010.model.figures import BLOCK_OVERHEAD, DMA_BANDWIDTH, PEAK, dma_bandwidth
from demitasse_sw26010.model.ldm import Ldm, LdmBuffer
from demitasse_sw26010.model.mesh import (
    COMPUTE,
    COUNTERS,
    FLOPS,
    GET,
    P1,
    PUT,
    SHORT,
    SMALL,
    product,
    stream,
    stream_rows,
    transfer,
)
from demitasse_sw26010.model.programs import machine_code, program, program_of_places
from demitasse_sw26010.model.registers import COLUMN, ROW, broadcast, buffers, mesh_sum, receive, send
from demitasse_sw26010.reproduction.training import offers, spec


def test_ldm_that_no_cpe_has_is_an_error_that_names_kernel_buffers_and_sizes() -> None:
    buffers = LdmBuffer("left", (512, 1024), copies=2), LdmBuffer("right", (64,), "float64")
    with pytest.raises(PlanError) as error:
        Ldm("big product", buffers)
    for part in ("'big product'", "left 65,536", "right 8", "65,544", "65,536"):
        assert part in str(error.value)


def test_a_kernel_whose_row_does_not_fit_is_refused_when_it_is_planned() -> None:
    x, w = spec((1, 1, 1, 20000)), spec((1, 1, 1, 1))
    with pytest.raises(PlanError, match=r"explicit gemm.*row 80,000"):
        offers("convolution", (x, w, None), (x,), {})


def test_ldm_is_no_number_before_a_dma() -> None:
    ldm = Ldm("some", (LdmBuffer("a", (64, 8)), LdmBuffer("b", (64,), "float64", 2)))
    a, b = PLACES.arrays(ldm)
    a[:], b[:] = 1, 2
    again = PLACES.arrays(ldm)
    assert again[0] is a
    assert np.isnan(a).all()
    assert np.isnan(b).all()


def test_dma_has_the_shape_of_figure_2() -> None:
    rates = [dma_bandwidth(2.0**i) for i in range(3, 16)]
    assert rates == sorted(rates)
    assert dma_bandwidth(32768) > 0.98 * DMA_BANDWIDTH
    assert dma_bandwidth(64) < 0.3 * DMA_BANDWIDTH
    assert dma_bandwidth(256) > 0.5 * DMA_BANDWIDTH
    assert dma_bandwidth(4096, cpes=1) < 0.1 * DMA_BANDWIDTH
    assert dma_bandwidth(4096, cpes=32) == dma_bandwidth(4096)


def test_a_small_transfer_is_mostly_latency() -> None:
    count = np.zeros(COUNTERS)
    small = transfer(count, GET, 64, 1.0, 16.0, 1.0)
    assert count[GET] == count[SMALL] == 1024
    assert 1024 / small < 0.1 * DMA_BANDWIDTH
    transfer(count, GET, 64, 64.0, 32.0, 1.0)
    assert count[SHORT] == 64 * 64 * 32
    assert count[SMALL] == 1024


def test_rows_that_lie_apart_are_blocks_of_their_own() -> None:
    """14 x 14 images in rows of 196 numbers, padded to 256, move 784 bytes at a time, not 8 KiB."""
    rows, columns = 512, 196
    together, apart = np.zeros(COUNTERS), np.zeros(COUNTERS)
    one = stream_rows(together, rows, columns, columns, columns, 0.0)
    assert one == stream(np.zeros(COUNTERS), rows * columns, rows * columns, 0.0)
    other = stream_rows(apart, rows, columns, columns, 256, 0.0)
    assert together[GET] == apart[GET] == apart[PUT] == 4.0 * rows * columns
    more = rows * columns * 4.0 * (BLOCK_OVERHEAD / 784 - BLOCK_OVERHEAD / (rows * columns / 16))
    assert other - one == pytest.approx(more / DMA_BANDWIDTH)
    assert apart[SHORT] == 0
    stream_rows(apart, rows, 49, 49, 64, 0.0)
    assert apart[SHORT] == 4.0 * rows * 49


def test_large_products_reach_two_thirds_of_the_peak() -> None:
    """Of three cycles of the floating-point pipeline, two multiply and one converts."""
    count = np.zeros(COUNTERS)
    size = 512
    seconds = product(count, size, size, size)
    assert count[COMPUTE] == seconds
    assert count[FLOPS] == 0, "what of a product is of use is the program's to say"
    assert 0.6 < 2.0 * size**3 / seconds / PEAK < 2 / 3
    # Its messages are broadcasts: 64 CPEs receive 32 bytes each at 4,461 GB/s in total. Each of 512
    # parts, 64 deep, has 8 loads and 8 messages a step, and 32 vectors of sums that are loaded and
    # stored.
    taken = 64 * 32 / 4461e9 * 1.45e9
    assert count[P1] == pytest.approx(512 * (64 * 8 * (1 + taken) + 32))


def test_messages_go_along_rows_and_columns_in_order() -> None:
    count = np.zeros(COUNTERS)
    messages, lengths = buffers()
    first, second, got = np.arange(4.0), np.arange(4.0) + 10, np.zeros(4)
    send(count, messages, lengths, 8, 15, first)
    send(count, messages, lengths, 9, 15, second)
    send(count, messages, lengths, 7, 15, second)
    receive(messages, lengths, 15, ROW, got)
    assert got.tolist() == first.tolist()
    receive(messages, lengths, 15, ROW, got)
    assert got.tolist() == second.tolist()
    receive(messages, lengths, 15, COLUMN, got)
    with pytest.raises(ValueError, match="no message"):
        receive(messages, lengths, 15, ROW, got)
    with pytest.raises(ValueError, match="row or a column"):
        send(count, messages, lengths, 0, 9, first)


def test_a_full_buffer_is_the_programs_mistake() -> None:
    count = np.zeros(COUNTERS)
    messages, lengths = buffers()
    for _ in range(4):
        send(count, messages, lengths, 0, 1, np.zeros(4))
    with pytest.raises(ValueError, match="full"):
        send(count, messages, lengths, 0, 1, np.zeros(4))


@pytest.mark.parametrize("along", [ROW, COLUMN])
def test_a_broadcast_reaches_seven(along: int) -> None:
    count = np.zeros(COUNTERS)
    messages, lengths = buffers()
    broadcast(count, messages, lengths, 27, along, np.ones(4))
    line = range(24, 32) if along == ROW else range(3, 64, 8)
    assert {cpe for cpe in range(64) if lengths[cpe, along]} == {*line} - {27}
    assert lengths.sum() == 7


def test_the_mesh_adds_up() -> None:
    parts = np.arange(64.0)
    assert mesh_sum(np.zeros(COUNTERS), True, parts) == 64 * 63 / 2


WORDS = (
    ("convolution", ((9, 5, 8, 9), (6, 5, 3, 3), (6,)), {"pad": (1, 1)}),
    ("convolution", ((8, 64, 4, 5), (64, 64, 3, 3), (64,)), {"pad": (1, 1), "stride": (2, 2)}),
    ("convolution", ((8, 64, 9, 20), (64, 64, 3, 3), (64,)), {"pad": (1, 0)}),
    (
        "convolution_backward_data",
        ((9, 6, 4, 5), (6, 5, 3, 3)),
        {"stride": (2, 2), "shape": (9, 5, 9, 11)},
    ),
    ("convolution_backward_data", ((2, 128, 3, 5), (128, 128, 3, 3)), {"shape": (2, 128, 5, 7)}),
    (
        "convolution_backward_data",
        ((2, 128, 3, 4), (128, 128, 3, 3)),
        {"stride": (2, 2), "shape": (2, 128, 7, 9)},
    ),
    (
        "convolution_backward_weights",
        ((9, 6, 8, 9), (9, 5, 8, 9)),
        {"pad": (1, 1), "shape": (6, 5, 3, 3)},
    ),
    ("convolution_backward_weights", ((2, 128, 3, 5), (2, 128, 5, 7)), {"shape": (128, 128, 3, 3)}),
    ("inner_product", ((70, 30), (300, 30), (300,)), {}),
    ("pooling_max", ((3, 4, 9, 9),), {"kernel": (3, 3), "stride": (2, 2)}),
    ("softmax_loss", ((5, 7), (5,)), {}),
    ("relu", ((3, 50),), {}),
)


@pytest.mark.parametrize(("name", "shapes", "about"), WORDS)
def test_counting_without_data_is_what_computing_counts(
    name: str, shapes: Any, about: dict[str, Any]
) -> None:
    operation = VOCABULARY[name]
    complete = {**operation.attributes, **about}
    given = dict(zip((o.name for o in operation.inputs), shapes, strict=True))
    made = operation.shapes(given, complete)
    outputs = tuple(
        TensorSpec(tuple(s), o.dtype or "float32") for s, o in zip(made, operation.outputs, strict=True)
    )
    place = Place("core_group", "ddr3")
    asked = Request(operation, tuple(map(spec, shapes)), outputs, complete, place)
    offered = candidates(asked)
    assert offered
    for candidate in offered:
        (part,) = candidate.bind.parts  # type: ignore[attr-defined]
        program = part.program
        count = np.zeros(COUNTERS)
        operands = {
            "in": [np.zeros(np.prod(s, dtype=int), "float32") for s in shapes],
            "out": [np.zeros(np.prod(s.shape, dtype=int), s.dtype) for s in outputs],
            "workspace": [np.zeros(candidate.workspace // 4, np.float32)],
            "wrong": [np.zeros(1, np.int64)],
        }
        arrays = [
            np.empty(0, kind.dtype) if isinstance(kind, Absent) else operands[side][position]
            for (side, position), kind in zip(part.places, program.operands, strict=True)
        ]
        program.compiled()(count, True, *PLACES.arrays(program.ldm), *arrays, *program.arguments())
        assert tuple(count) == pytest.approx(tuple(vars(program.cost).values()))
        assert candidate.seconds == program.cost.seconds > 0


def test_what_a_program_counted_is_known_at_other_places() -> None:
    seen = []

    @program_of_places("x0")
    def some(count: Any, touch: bool, x: Any, x0: int, size: int) -> None:
        seen.append((touch, x0, size))
        count[FLOPS] += size * len(x)

    count, x = [1.0] * COUNTERS, np.zeros(3)
    for place, size in ((0, 2), (1, 2), (1, 5), (7, 5)):
        some(count, False, x, place, size)
    some(count, False, x[:2], 0, 2)
    assert seen == [(False, 0, 2), (False, 1, 5), (False, 0, 2)]
    assert count == [1.0 + (2 * 6 + 2 * 15 + 4) * (counter == FLOPS) for counter in range(COUNTERS)]
    some(count, True, x, 7, 5)
    assert seen[-1] == (True, 7, 5)


def test_numbers_that_stand_in_calls_do_not_have_a_program_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A program cached by an earlier run contains what it calls, so nothing would be compiled.
    monkeypatch.setattr(load_numba().config, "CACHE_DIR", str(tmp_path))

    @program
    def scaled(by: int, x: float) -> float:
        return by * x

    @program
    def several(x: float) -> float:
        return scaled(2, x) + scaled(3, x) + scaled(by=4, x=x)

    assert machine_code(several)(10.0) == several(10.0) == 90.0
    assert len(machine_code(scaled).signatures) == 1  # type: ignore[attr-defined]
