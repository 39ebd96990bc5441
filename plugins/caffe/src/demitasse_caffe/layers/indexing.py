"""Layers that take parts and copies of blobs, rows by number, and blobs that are learned."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, canonical, check_whole, learned
from demitasse_caffe.layers.convolution import biased
from demitasse_caffe.layers.transformation import as_numbers


class Crop(CaffeLayer):
    """The first bottom, cropped to the extents of the second along the axes from ``axis`` on.
    The crop starts at ``offset`` (one for all axes, or one for each). Only the shape of the
    second bottom matters."""

    name = "Crop"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        crop, (x, reference) = message.crop_param, bottoms
        axis, rank = canonical(crop.axis, x), len(x.shape)
        if len(reference.shape) < rank:
            raise ValueError(f"cannot cut {x!r} to {reference!r}, which has fewer axes")
        given = list(crop.offset) or [0]
        if len(given) not in (1, rank - axis):
            raise ValueError(
                f"has {len(given)} offsets for the {rank - axis} axes of {x!r} from axis {axis} on; "
                f"give one, or one each"
            )
        offset = (*[0] * axis, *(given * (rank - axis) if len(given) == 1 else given))
        extent = (*x.shape[:axis], *reference.shape[axis:rank])
        if extent == x.shape and not any(offset):
            return [x]
        return [graph.apply("crop", x, offset=offset, extent=extent)]


class Slice(CaffeLayer):
    """The bottom, cut along an axis at each ``slice_point``, or into equal parts; each part is a top."""

    name = "Slice"
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        cut, x, count = message.slice_param, bottoms[0], len(layer.tops)
        if cut.HasField("slice_dim") and cut.HasField("axis"):
            raise ValueError("axis and the older slice_dim cannot be combined")
        axis = canonical(cut.slice_dim if cut.HasField("slice_dim") else cut.axis, x)
        extent, points = x.shape[axis], list(cut.slice_point)
        if points and len(points) != count - 1:
            raise ValueError(f"has {len(points)} slice_point for {count} tops; {count - 1} are needed")
        if not points:
            if extent % count:
                raise ValueError(
                    f"{count} tops do not divide the {extent} elements along axis {axis} of {x!r}"
                )
            points = list(range(extent // count, extent, extent // count))
        edges = [0, *points, extent]
        if any(start >= stop for start, stop in pairwise(edges)):
            raise ValueError(
                f"slice_point {points} must rise, from above 0 to below {extent}, for {x!r}"
            )
        if count == 1:
            return [x]
        shapes = tuple((*x.shape[:axis], b - a, *x.shape[axis + 1 :]) for a, b in pairwise(edges))
        return list(graph.apply("slice", x, axis=axis, shapes=shapes))


class Tile(CaffeLayer):
    """The bottom, repeated along an axis."""

    name = "Tile"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        tile, x = message.tile_param, bottoms[0]
        if tile.tiles < 1:
            raise ValueError("tile_param needs tiles of 1 or more")
        return [graph.apply("tile", x, axis=canonical(tile.axis, x), tiles=tile.tiles)]


class BatchReindex(CaffeLayer):
    """The samples of the first bottom at the indices in the second, in their order; some may be missing,
    some repeated. An invalid index stops the run."""

    name = "BatchReindex"
    bottoms = (2, 2)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        x, index = bottoms
        if len(index.shape) != 1:
            raise ValueError(f"its second bottom must be a row of sample numbers, not {index!r}")
        return [graph.apply("gather", x, index, source=place_of(layer))]


class Embed(CaffeLayer):
    """For each number of the bottom, which is below ``input_dim``, a learned row of ``num_output``
    numbers, plus a bias. A number without a row stops the run."""

    name = "Embed"

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        embed, x = message.embed_param, bottoms[0]
        rows, outputs = embed.input_dim, embed.num_output
        if rows < 1 or outputs < 1:
            raise ValueError("embed_param needs an input_dim and a num_output of 1 or more")
        w = learned(graph, message, 0, (rows, outputs), embed.weight_filler)
        check_whole("input_dim", rows, x)
        b = learned(graph, message, 1, (outputs,), embed.bias_filler) if embed.bias_term else None
        y = graph.apply("gather", w, x, source=place_of(layer))
        return [y if b is None else biased(layer, y, b, len(x.shape), graph)]


class Filter(CaffeLayer):
    """The samples of each bottom but the last for which the last bottom, the selector, is not 0.

    Their number is only known once the selector has been computed. Therefore tops have as many rows as
    bottoms: first the selected samples in order, then rows of zeros, through which no gradient passes.
    The actual number of rows is the number of nonzero elements of the selector. One more top than in
    Caffe holds this count, for layers that average over rows; a layer that averages without it (a loss)
    also counts the zeros.
    """

    name = "Filter"
    bottoms = (2, None)
    tops = (1, None)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        *given, selector = bottoms
        if len(layer.tops) not in (len(given), len(given) + 1):
            raise ValueError(
                f"has {len(layer.tops)} tops for {len(given)} bottoms and a selector; give each bottom "
                f"its own, and one more for the count"
            )
        made = [graph.apply("compress", x, selector) for x in given]
        tops = [y for y, _ in made]
        return tops if len(layer.tops) == len(tops) else [*tops, as_numbers(made[0][1], graph)]


class Parameter(CaffeLayer):
    """A blob that is learned, starting from zeros unless weights are given."""

    name = "Parameter"
    bottoms = (0, 0)

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        shape = tuple(message.parameter_param.shape.dim)
        if min(shape, default=1) < 1:
            raise ValueError(f"parameter_param has the shape {shape}; its extents must be positive")
        # The message has no filler. The default of any other one is Caffe's zeros.
        return [learned(graph, message, 0, shape, message.bias_param.filler)]


def place_of(layer: Layer) -> str:
    """Return the layer's location, name and type, for errors that a step raises."""
    return f"{layer.location}: layer {layer.name!r} ({layer.type})"
