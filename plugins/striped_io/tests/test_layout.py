"""Records are in blocks, never across two, and blocks are distributed over the stripes in turn."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from demitasse_striped_io.index import Index
from demitasse_striped_io.layout import Layout

BLOCK = st.integers(12, 40)
STRIPES = st.integers(1, 5)


def index(samples: int, record: int, block: int, stripes: int) -> Index:
    paths = tuple(Path(f"stripe-{i}") for i in range(stripes))
    form = "raw" if record else "encoded"
    return Index(form, samples, {}, {}, record, block, paths, (0,) * stripes)


def agrees(layout: Layout, starts: Sequence[int], lengths: Sequence[int], block: int) -> None:
    """Check a layout against where records start, counted through all blocks one after the other."""
    stripes, blocks = layout.stripes, [start // block for start in starts]
    numbers = range(len(starts))
    assert [layout.block_of(number) for number in numbers] == blocks
    assert layout.blocks == blocks[-1] + 1
    assert layout.bounds.tolist() == [
        *(blocks.index(each) for each in range(layout.blocks)),
        len(starts),
    ]
    last = len(starts) - 1
    assert layout.where(last) == f"stripe {blocks[-1] % stripes}, block {blocks[-1]}, sample {last}"
    pieces = [
        (each % stripes, each // stripes * block + start % block, length)
        for each, start, length in zip(blocks, starts, lengths, strict=True)
    ]
    found = layout.pieces(np.array(numbers))
    assert found[:, :3].tolist() == [list(piece) for piece in pieces]
    assert found[:, 3].tolist() == [0, *itertools.accumulate(lengths)][:-1]
    given_places = layout.pieces(np.array([last, 0]), np.array([70, 30]))
    assert given_places[:, 3].tolist() == [70, 30]
    assert layout.lengths(np.array(numbers)).tolist() == list(lengths)
    ends = [0] * stripes
    for stripe, offset, length in pieces:
        ends[stripe] = max(ends[stripe], offset + length)
    assert layout.stripe_lengths() == tuple(ends)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40), BLOCK, STRIPES)
def test_records_of_any_lengths(lengths: list[int], block: int, stripes: int) -> None:
    starts, end = list[int](), 0
    for length in lengths:
        if end % block + length > block:
            end += block - end % block
        starts.append(end)
        end += length
    table = {"offset": np.array(starts), "length": np.array(lengths)}
    agrees(Layout(index(len(lengths), 0, block, stripes), table), starts, lengths, block)


@given(st.integers(1, 60), st.integers(1, 12), BLOCK, STRIPES)
def test_records_of_one_length(samples: int, record: int, block: int, stripes: int) -> None:
    each = block // record
    starts = [number // each * block + number % each * record for number in range(samples)]
    agrees(Layout(index(samples, record, block, stripes), {}), starts, [record] * samples, block)
