"""Loops that move rows and boxes of tensors. Numbers that are only moved may be stored in any type."""

from __future__ import annotations

import math

from demitasse_cpu.loops.compiled import Array, compiled
from demitasse_cpu.native import WrongError


@compiled()
def cut_out(x: Array, y: Array, starts: Array, width: int, begin: int, end: int) -> None:
    """Copy each row of y from where it starts in x."""
    for row in range(begin, end):
        given = x[starts[row] : starts[row] + width]
        result = y[row * width : (row + 1) * width]
        for i in range(width):
            result[i] = given[i]


@compiled()
def put_back(dy: Array, dx: Array, starts: Array, width: int, begin: int, end: int) -> None:
    for row in range(begin, end):
        given = dy[row * width : (row + 1) * width]
        result = dx[starts[row] : starts[row] + width]
        for i in range(width):
            result[i] = given[i]


@compiled()
def tiled(x: Array, y: Array, width: int, tiles: int, begin: int, end: int) -> None:
    for row in range(begin, end):
        given = x[row * width : (row + 1) * width]
        if width == 1:
            result = y[row * tiles : (row + 1) * tiles]
            for i in range(tiles):
                result[i] = given[0]
            continue
        for copy in range(row * tiles, (row + 1) * tiles):
            result = y[copy * width : (copy + 1) * width]
            for i in range(width):
                result[i] = given[i]


@compiled(reassociate=True)
def added_tiles(dy: Array, dx: Array, width: int, tiles: int, begin: int, end: int) -> None:
    for row in range(begin, end):
        result = dx[row * width : (row + 1) * width]
        if width == 1:
            total = dx.dtype.type(0)
            given = dy[row * tiles : (row + 1) * tiles]
            for i in range(tiles):
                total += given[i]
            result[0] = total
            continue
        for i in range(width):
            result[i] = 0
        for copy in range(row * tiles, (row + 1) * tiles):
            given = dy[copy * width : (copy + 1) * width]
            for i in range(width):
                result[i] += given[i]


@compiled()
def first_wrong(index: Array, rows: int, wrong: Array) -> None:
    """Raise WrongError if an index is not a row, with its place in ``wrong``."""
    for i in range(index.size):
        if not (index[i] >= 0 and index[i] < rows and math.floor(index[i]) == index[i]):
            wrong[0] = i
            raise WrongError


@compiled()
def gathered(x: Array, index: Array, y: Array, width: int, begin: int, end: int) -> None:
    """Copy rows by index. Skip an index that is not a row, because ``first_wrong`` reports it."""
    rows = x.size // width
    for i in range(begin, end):
        if index[i] >= 0 and index[i] < rows:
            row = int(index[i])
            given, result = x[row * width : (row + 1) * width], y[i * width : (i + 1) * width]
            for j in range(width):
                result[j] = given[j]


@compiled()
def scattered(dy: Array, index: Array, dx: Array, width: int, begin: int, end: int) -> None:
    """Compute rows ``begin`` to ``end`` of dx, each summed in the order of the indices whichever thread
    does it."""
    dx[begin * width : end * width] = 0
    for i in range(index.size):
        if index[i] >= begin and index[i] < end:
            row = int(index[i])
            given, result = dy[i * width : (i + 1) * width], dx[row * width : (row + 1) * width]
            for j in range(width):
                result[j] += given[j]


@compiled()
def _selected(selector: Array, end: int) -> int:
    total = 0
    for i in range(end):
        total += selector[i] != 0
    return total


@compiled()
def counted(selector: Array, count: Array) -> None:
    count[0] = _selected(selector, selector.size)


@compiled()
def compressed(x: Array, selector: Array, y: Array, width: int, begin: int, end: int) -> None:
    place, total = _selected(selector, begin), _selected(selector, selector.size)
    for row in range(begin, end):
        if selector[row] != 0:
            given, result = x[row * width : (row + 1) * width], y[place * width : (place + 1) * width]
            for i in range(width):
                result[i] = given[i]
            place += 1
        if row >= total:
            y[row * width : (row + 1) * width] = 0


@compiled()
def decompressed(dy: Array, selector: Array, dx: Array, width: int, begin: int, end: int) -> None:
    place = _selected(selector, begin)
    for row in range(begin, end):
        result = dx[row * width : (row + 1) * width]
        if selector[row] != 0:
            given = dy[place * width : (place + 1) * width]
            for i in range(width):
                result[i] = given[i]
            place += 1
        else:
            result[:] = 0
