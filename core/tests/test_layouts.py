"""Layouts say where each element of a logical tensor lies in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import PLAIN, Layout, TensorSpec

NHWC = Layout("NHWC", (0, 2, 3, 1))
RCNB = Layout("RCNB", (2, 3, 1, 0))
NCHW8C = Layout("NCHW8c", blocks=((1, 8),))
OIHW = Layout("OIhw4o2i", (0, 1, 2, 3), ((0, 4), (1, 2)))


def numbered(*shape: int) -> np.ndarray:
    """Return an array in which every element is a different number, and none is the padding's zero."""
    return np.arange(1, math.prod(shape) + 1, dtype=np.float64).reshape(shape)


def test_plain_is_row_major_and_is_not_copied() -> None:
    x = numbered(2, 3, 4, 5)
    packed = PLAIN.pack(x)
    assert PLAIN.physical(x.shape) == (2, 3, 4, 5)
    assert np.shares_memory(packed, x)
    assert np.shares_memory(PLAIN.unpack(packed, x.shape), x)
    assert packed.reshape(-1)[((1 * 3 + 2) * 4 + 3) * 5 + 4] == x[1, 2, 3, 4]


def test_channels_last_has_the_channel_innermost() -> None:
    N, C, H, W = 2, 3, 4, 5
    x = numbered(N, C, H, W)
    memory = NHWC.pack(x).reshape(-1)
    assert NHWC.physical(x.shape) == (N, H, W, C)
    for n, c, h, w in np.ndindex(x.shape):
        assert memory[((n * H + h) * W + w) * C + c] == x[n, c, h, w]


def test_swcaffes_layout_has_the_sample_innermost() -> None:
    N, C, H, W = 2, 3, 4, 5
    x = numbered(N, C, H, W)
    memory = RCNB.pack(x).reshape(-1)
    assert RCNB.physical(x.shape) == (H, W, C, N)
    for n, c, h, w in np.ndindex(x.shape):
        assert memory[((h * W + w) * C + c) * N + n] == x[n, c, h, w]


@pytest.mark.parametrize("C", [1, 7, 8, 9, 16])
def test_blocked_channels_are_padded_with_zeros_to_whole_blocks(C: int) -> None:
    N, H, W, blocks = 2, 3, 2, -(-C // 8)
    x = numbered(N, C, H, W)
    packed = NCHW8C.pack(x)
    memory = packed.reshape(-1)
    assert packed.shape == NCHW8C.physical(x.shape) == (N, blocks, H, W, 8)
    for n, c, h, w in np.ndindex(x.shape):
        assert memory[(((n * blocks + c // 8) * H + h) * W + w) * 8 + c % 8] == x[n, c, h, w]
    assert np.count_nonzero(memory) == x.size


def test_two_dimensions_are_blocked_in_the_order_given() -> None:
    O, I, H, W = 5, 3, 2, 2  # noqa: E741
    x = numbered(O, I, H, W)
    memory = OIHW.pack(x).reshape(-1)
    assert OIHW.physical(x.shape) == (2, 2, H, W, 4, 2)
    for o, i, h, w in np.ndindex(x.shape):
        place = (((((o // 4) * 2 + i // 2) * H + h) * W + w) * 4 + o % 4) * 2 + i % 2
        assert memory[place] == x[o, i, h, w]


@st.composite
def layouts_and_shapes(draw: st.DrawFn) -> tuple[Layout, tuple[int, ...]]:
    """Draw any order, blocks (also several of a dimension) and shape of one to four dimensions."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    order = draw(st.one_of(st.just(()), st.permutations(range(len(shape))).map(tuple)))
    cut = st.tuples(st.integers(0, len(shape) - 1), st.integers(1, 4))
    return Layout("any", order, tuple(draw(st.lists(cut, max_size=3)))), shape


def place(layout: Layout, shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    """Return an element's place by definition: from the innermost on, each block takes the remainder of
    what its dimension has left; the quotients follow the order, outside the blocks, row by row."""
    quotients, rests = list(index), []
    for dimension, size in reversed(layout.blocks):
        quotients[dimension], rest = divmod(quotients[dimension], size)
        rests.insert(0, rest)
    order = layout.order or range(len(shape))
    offset = 0
    digits = (*(quotients[d] for d in order), *rests)
    for digit, extent in zip(digits, layout.physical(shape), strict=True):
        assert digit < extent
        offset = offset * extent + digit
    return offset


@given(layouts_and_shapes())
@settings(max_examples=examples(80))
def test_every_element_lies_where_the_definition_says(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = case
    x = numbered(*shape)
    packed = layout.pack(x)
    assert packed.shape == layout.physical(shape)
    assert packed.flags.c_contiguous
    memory = packed.reshape(-1)
    for index in np.ndindex(shape):
        assert memory[place(layout, shape, index)] == x[index]
    assert np.count_nonzero(memory) == x.size, "padding is zero"


@given(layouts_and_shapes())
@settings(max_examples=examples(80))
def test_unpacking_gives_back_what_was_packed(case: tuple[Layout, tuple[int, ...]]) -> None:
    layout, shape = case
    x = numbered(*shape)
    assert np.array_equal(layout.unpack(layout.pack(x), shape), x)


def test_a_permuted_tensor_is_unpacked_as_a_live_view() -> None:
    memory = NHWC.pack(numbered(2, 3, 4, 5))
    NHWC.unpack(memory, (2, 3, 4, 5))[1, 2, 3, 4] = -1
    assert memory[1, 3, 4, 2] == -1


def test_a_tensor_takes_the_memory_of_its_padded_blocks() -> None:
    spec = TensorSpec((2, 9, 3, 3), "float32", NCHW8C)
    assert spec.physical == (2, 2, 3, 3, 8)
    assert spec.nbytes == 2 * 16 * 9 * 4
    assert str(spec) == "2x9x3x3 float32 NCHW8c"
    assert TensorSpec((), "float64").nbytes == 8
