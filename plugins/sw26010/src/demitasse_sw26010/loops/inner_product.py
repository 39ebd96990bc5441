"""Inner products: the product of the mesh, in whichever form is cheaper, as it is or transposed."""

from __future__ import annotations

from demitasse_sw26010.loops.gemm import copy, copy_with_bias, gemm
from demitasse_sw26010.model.mesh import stream
from demitasse_sw26010.model.programs import Array, program


@program
def padded(
    count: Array,
    touch: bool,
    line: Array,
    x: Array,
    space: Array,
    at: int,
    rows: int,
    columns: int,
    sizes: Array,
) -> None:
    """Copy a matrix with zeros up to whole tiles, unless it has whole tiles already."""
    if sizes[0] != rows or sizes[1] != columns:
        copy(count, touch, line, x, 0, columns, space, at, sizes[1], rows, columns)


@program
def matrix_product(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    line: Array,
    a: Array,
    b: Array,
    bias: Array,
    y: Array,
    space: Array,
    a_size: Array,
    b_size: Array,
    y_size: Array,
    a_turned: bool,
    b_turned: bool,
    turned: bool,
) -> None:
    """Y = A B + bias (one number for each column of Y), with A and B as they are or transposed. Each
    size has the rows and columns of the matrix as it is, then those of the padded matrix in ``space``
    (a, b and y in order). With ``turned``, the same matrices are used to compute Y^T = B^T A^T."""
    a_at, b_at = 0, a_size[2] * a_size[3]
    y_at = b_at + b_size[2] * b_size[3]
    padded(count, touch, line, a, space, a_at, a_size[0], a_size[1], a_size[2:])
    padded(count, touch, line, b, space, b_at, b_size[0], b_size[1], b_size[2:])
    am, a0 = (a, 0) if a_size[0] == a_size[2] and a_size[1] == a_size[3] else (space, a_at)
    bm, b0 = (b, 0) if b_size[0] == b_size[2] and b_size[1] == b_size[3] else (space, b_at)
    whole = y_size[0] == y_size[2] and y_size[1] == y_size[3]
    ym, y0 = (y, 0) if whole else (space, y_at)
    ar, ac = (1, a_size[3]) if a_turned else (a_size[3], 1)
    br, bc = (1, b_size[3]) if b_turned else (b_size[3], 1)
    m, n = y_size[0], y_size[1]
    k, kp = (a_size[0], a_size[2]) if a_turned else (a_size[1], a_size[3])
    if turned:
        gemm(count, touch, la, lb, lc, bm, b0, bc, br, am, a0, ac, ar, ym, y0, 1, y_size[3],
             y_size[3], y_size[2], kp, n, m, k, False)  # fmt: skip
    else:
        gemm(count, touch, la, lb, lc, am, a0, ar, ac, bm, b0, br, bc, ym, y0, y_size[3], 1,
             y_size[2], y_size[3], kp, m, n, k, False)  # fmt: skip
    if bias.size > 0:
        copy_with_bias(count, touch, line, ym, y0, y_size[3], bias, True, y, 0, n, m, n)
    elif not whole:
        copy(count, touch, line, ym, y0, y_size[3], y, 0, n, m, n)


@program
def column_sums(
    count: Array, touch: bool, sums: Array, dy: Array, db: Array, rows: int, columns: int
) -> None:
    """db = the sum of dy over its rows. LDM has ``sums`` for a part of the columns."""
    stream(count, 1.0 * rows * columns, 1.0 * columns, rows * columns / 64.0 / 4.0)
    if touch:
        for begin in range(0, columns, sums.size):
            some = min(sums.size, columns - begin)
            for i in range(some):
                sums[i] = 0.0
            for r in range(rows):
                for i in range(some):
                    sums[i] += dy[r * columns + begin + i]
            for i in range(some):
                db[begin + i] = sums[i]


@program
def weights_gradient(
    count: Array,
    touch: bool,
    la: Array,
    lb: Array,
    lc: Array,
    line: Array,
    sums: Array,
    a: Array,
    b: Array,
    none: Array,
    y: Array,
    dy: Array,
    db: Array,
    space: Array,
    a_size: Array,
    b_size: Array,
    y_size: Array,
    a_turned: bool,
    b_turned: bool,
    turned: bool,
    rows: int,
    columns: int,
) -> None:
    """Compute the product for dw and, if requested, db."""
    matrix_product(count, touch, la, lb, lc, line, a, b, none, y, space, a_size, b_size, y_size,
                   a_turned, b_turned, turned)  # fmt: skip
    if db.size > 0:
        column_sums(count, touch, sums, dy, db, rows, columns)
