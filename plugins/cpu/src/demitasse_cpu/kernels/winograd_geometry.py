"""The positions of Winograd tiles in images and results, and the memory that their transforms need; see
loops.winograd."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from demitasse import Request, TensorSpec
from demitasse_cpu.kernels.requests import flat

TAPS = (3, 5)
"""The numbers of taps along each axis that the kernels serve."""

FLOAT = 4
LINE = 16
_ROWS, _ROWS_OF_WIDE = 8, 2  # the height of tiles of sums, for few outputs and for many

# Large enough for the loops of any processor, whose panels have 8 to 64 channels. The values for this
# processor are in loops.winograd_blocks, which is not imported before a kernel is bound.
PANEL = 64
SPARE_ROWS = 8
SQUARE_ROWS = 66

KEPT_WEIGHTS = 12 << 20
"""The bytes of transformed weights that the third cache keeps next to everything else."""

FEW_TILES = 256
"""Up to this number, all tiles are transformed first. Many weights are then used up panel by panel, and
their gradients summed square by square: for 128 tiles of 512 channels, one core took 11 ms, and 14 ms in
blocks."""

GRADIENT_FEW_TILES = 512
"""The same limit for the gradient of the weights. For 392 tiles of 512 channels both ways take 27 ms,
but in blocks each thread has sums of its own: 143 MB in total, and 56 MB by squares."""

_FEWEST_TILES, _NEAR_WEIGHTS = 64, 2**18
"""Fewer tiles than the first number cannot make up for fetching more bytes of weights than the
second."""


class Sizes(NamedTuple):
    """A convolution's sizes, as (rows, columns) where there are two. Channels and outputs are those of a
    group."""

    taps: int
    samples: int
    groups: int
    channels: int
    outputs: int
    image: tuple[int, int]
    result: tuple[int, int]
    pad: tuple[int, int]
    threads: int
    results: int = 4
    """Results along an axis of a tile; 2 only with three taps."""

    @property
    def kernel(self) -> str:
        return name_of(self.results, self.taps)

    @property
    def points(self) -> int:
        """Pixels along an axis of a tile."""
        return self.results + self.taps - 1

    @property
    def pair(self) -> int:
        """Weights between a channel and an output."""
        return self.taps**2

    @property
    def patch(self) -> int:
        """Bytes for the weights that are put in order at a time."""
        return self.pair * 8 * LINE * FLOAT

    @property
    def tiles(self) -> int:
        return self.grid[2]

    @property
    def grid(self) -> tuple[int, int, int]:
        """How many images are joined down and across such that the tiles are fewest, and the number of
        tiles."""
        grids = [(n, self.samples // n) for n in range(self.samples, 0, -1) if self.samples % n == 0]
        counts = [_joined(self, 0, n)[0] * _joined(self, 1, m)[0] for n, m in grids]
        fewest = counts.index(min(counts))
        return *grids[fewest], counts[fewest]

    @property
    def weights(self) -> int:
        """The bytes of the transformed weights."""
        outputs = whole(self.outputs, LINE)
        return self.points**2 * (self.channels * outputs + outputs) * FLOAT

    def has_many_weights(self, few: int = FEW_TILES) -> bool:
        """Return whether there are too many weights, for at most ``few`` tiles, to go through them block
        by block."""
        return self.weights > KEPT_WEIGHTS and self.tiles <= few

    @property
    def parts(self) -> int:
        """The number of threads that have work if they divide the tiles."""
        return max(1, min(self.threads, self.tiles // 6))

    @property
    def rows(self) -> int:
        """The rows of products that are computed together."""
        return _ROWS_OF_WIDE if self.outputs > 3 * LINE else _ROWS

    def block(self, most: int, parts: int = 0) -> int:
        """Return the number of tiles in a block, at most ``most``, for which the blocks of one part need
        the fewest rows of products, which are computed several at a time. ``parts`` is by default the
        number of threads that have work."""
        mine = -(-self.tiles // (parts or self.parts))
        rows = self.rows

        def computed(block: int) -> int:
            whole_blocks, rest = divmod(mine, block)
            return whole_blocks * (whole(block, rows) + 1) + (whole(rest, rows) + 1 if rest else 0)

        return min(range(min(mine, most), min(mine, most) // 2, -1), key=computed)


def name_of(results: int, taps: int) -> str:
    """Return the kernels' name in the notation of Lavin and Gray."""
    return f"Winograd F({results}x{results}, {taps}x{taps})"


def sizes_of(request: Request, x: TensorSpec, w: Sequence[int], y: TensorSpec) -> Sizes:
    groups = request.attributes["groups"]
    return Sizes(
        taps=w[2],
        samples=x.shape[0],
        groups=groups,
        channels=w[1],
        outputs=w[0] // groups,
        image=(x.shape[2], x.shape[3]),
        result=(y.shape[2], y.shape[3]),
        pad=tuple(request.attributes["pad"]),
        threads=max(1, request.place.threads),
    )


def is_bound_by_weights(request: Request, s: Sizes) -> bool:
    """Return whether fetching the float32 weights and transforming them takes longer than the rest,
    while another kernel has a 16-bit copy that is made once. A trial cannot tell, because there the
    weights are in the caches: one image of AlexNet's second convolution took 0.37 ms in a trial but 0.89
    in its net, where oneDNN's kernel takes 0.54."""
    size = s.groups * s.channels * s.outputs * s.pair * FLOAT
    halved = request.fixed and request.precision == "bf16"
    return halved and s.tiles < _FEWEST_TILES and size > _NEAR_WEIGHTS


@lru_cache(maxsize=64)
def tiles_of(s: Sizes) -> Any:
    """Return the positions of tiles as a ``loops.winograd_blocks.Tiles``. All callers share its tables,
    and must not write to them. A convolution asks three times or, if its kernels are tried, six."""
    import numpy as np

    from demitasse_cpu.loops import winograd_blocks as loops

    down, across, _ = s.grid
    pixel, result_pixel = s.groups * s.channels, s.groups * s.outputs
    line, result_line = s.image[1] * pixel, s.result[1] * result_pixel
    image, result = s.image[0] * line, s.result[0] * result_line
    rows, result_rows = _places(s, 0, down, (across * image, line), (across * result, result_line))
    columns, result_columns = _places(s, 1, across, (image, pixel), (result, result_pixel))
    return loops.Tiles(
        form=tuple(range(s.points)),
        channels=s.channels,
        outputs=s.outputs,
        across=len(columns) // s.points,
        rows=np.array(rows),
        columns=np.array(columns),
        down_step=line,
        across_step=pixel,
        result_rows=np.array(result_rows),
        result_columns=np.array(result_columns),
        result_down_step=result_line,
        result_across_step=result_pixel,
    )


def _joined(s: Sizes, d: int, images: int) -> tuple[int, bool]:
    """Return the number of tiles along ``images`` in a line, and whether the images are joined: only the
    zeros of one border separate them, so that a tile may have results of two images. With 13 x 13
    results, 8 x 4 joined images have 28 x 14 tiles, and each image alone has 4 x 4."""
    apart = images * -(-s.result[d] // s.results)
    joined = -(-((images - 1) * (s.image[d] + s.pad[d]) + s.result[d]) // s.results)
    return min(joined, apart), joined < apart


def _places(
    s: Sizes, d: int, images: int, of_image: tuple[int, int], of_result: tuple[int, int]
) -> tuple[list[int], list[int]]:
    """Return where the input lines and the result lines of each tile along ``images`` begin, with -1 for
    lines that are in no image. ``of_image`` and ``of_result`` are the distances between images and
    between lines."""
    count, joined = _joined(s, d, images)
    period = s.image[d] + s.pad[d] if joined else whole(s.result[d], s.results)
    places: list[int] = []
    results: list[int] = []
    for tile in range(count):
        first = 0 if joined else s.results * tile // period
        start = s.results * tile - first * period
        for table, lines, at, extent, (image_step, step) in (
            (places, s.points, start - s.pad[d], s.image[d], of_image),
            (results, s.results, start, s.result[d], of_result),
        ):
            for line in range(at, at + lines):
                image, inner = (line // period, line % period) if joined else (0, line)
                there = 0 <= first + image < images and 0 <= inner < extent
                table.append((first + image) * image_step + inner * step if there else -1)
    return places, results


def whole(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def of_groups(s: Sizes, inputs: Sequence[Any], targets: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
    """Yield dy, x, dw and db of each group, for the gradient of the weights."""
    dy, x = map(flat, inputs)
    dw, db = (*targets, None)[:2]
    dw = flat(dw)
    db = dw[:0] if db is None else db
    size = s.channels * s.outputs * s.pair
    for group in range(s.groups):
        outputs = slice(group * s.outputs, (group + 1) * s.outputs)
        weights = slice(group * size, (group + 1) * size)
        yield dy[outputs.start :], x[group * s.channels :], dw[weights], db[outputs]


def sums_of(request: Request, s: Sizes) -> int:
    """Return how many numbers of the bias's gradient each thread sums, for the gradient of the
    weights."""
    is_wanted = len(request.outputs) > 1 and request.outputs[1] is not None
    return whole(s.outputs, LINE) if is_wanted else 0


def units_of(s: Sizes, parts: int) -> tuple[int, int]:
    """Return into how many units ``parts`` threads divide the addition of gradients, and the vectors of
    outputs of a unit, which has a panel of channels. These are a panel's, or one if there are too few
    panels for the threads."""
    from demitasse_cpu.loops.vectors import LANES
    from demitasse_cpu.loops.winograd_blocks import PANEL

    panels, vectors = -(-s.channels // PANEL), -(-s.outputs // LANES)
    squares = panels * -(-s.outputs // PANEL)
    return (squares, PANEL // LANES) if squares >= parts else (panels * vectors, 1)


def lie_room(s: Sizes, channels: int, tiles: int) -> int:
    """Return the bytes for this many transformed tiles and channels, in panels or not."""
    spare = SPARE_ROWS * channels + PANEL
    return (s.points**2 * whole(channels, PANEL) * (tiles + 1) + spare) * FLOAT
