"""Samples that vary in shape: which layers have them, and the shapes of the next ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from demitasse import DataError, ModelError, Node, Stream, blamed

if TYPE_CHECKING:
    from demitasse_training.graph import NetGraph

SampleShapes = Mapping[tuple[str, str], tuple[int, ...]]
"""Shapes of a sample by layer and field; shapes that a user's layer makes, by layer and top's number."""


def varying(graph: NetGraph) -> list[str]:
    """Return the layers for whose samples a net is planned anew. These are layers whose samples each
    have a shape of their own and, with one worker, layers that run a user's code and either have no
    bottoms or report shapes only when they run."""
    alone = graph.workers == 1
    made = [layer for layer, part in users(graph) if alone and (not part.bottoms or part.tells_late)]
    return list(dict.fromkeys([*(f.layer for f in graph.feeds if f.layer in graph.varying), *made]))


def users(graph: NetGraph) -> Iterator[tuple[str, Any]]:
    """Yield (layer, object) for every object that runs a user's code."""
    for node in graph.nodes:
        for part in users_of(node) if node.phase == "forward" else ():
            yield node.layer, part


def users_of(node: Node) -> list[Any]:
    """Return the attributes of an operation that run a user's code."""
    return [part for part in node.attributes.values() if hasattr(part, "reshaped")]


def makers(graph: NetGraph) -> Iterator[tuple[str, Any]]:
    """Return (layer, object) for every object that runs a user's code in a layer without bottoms."""
    return ((layer, part) for layer, part in users(graph) if not part.bottoms)


def made(graph: NetGraph) -> SampleShapes:
    """Return the shapes that ``makers`` made last."""
    return {
        (layer, str(top)): shape
        for layer, part in makers(graph)
        for top, shape in enumerate(part.top_shapes)
    }


def coming(graph: NetGraph, streams: Sequence[Stream]) -> SampleShapes:
    """Return the shapes of the next samples that differ from their source's first. Raises DataError if
    samples cannot be read."""
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for feed, stream in zip(graph.feeds, streams, strict=True):
        if feed.layer in graph.varying:
            with blamed(stream, "in coming", f"layer {feed.layer!r}"):
                now = stream.coming()  # type: ignore[attr-defined]
                told = {(feed.layer, name): tuple(now[name]) for name in feed.tensors}
            usual = feed.source.fields
            found |= {key: shape for key, shape in told.items() if shape != usual[key[1]].shape}
    return found


@contextmanager
def explained(graph: NetGraph, streams: Sequence[Stream], samples: SampleShapes) -> Iterator[None]:
    """Turn the error for shapes that a net does not support into a DataError that names the samples."""
    try:
        yield
    except ModelError as error:
        shapes = ", ".join(f"{field} {shape}" for (_, field), shape in samples.items())
        told = {feed.layer: stream for feed, stream in zip(graph.feeds, streams, strict=True)}
        here = "; ".join(dict.fromkeys(_name(layer, told.get(layer)) for layer, _ in samples))
        raise DataError(f"{here}: the net cannot take samples of {shapes}: {error}") from error


def _name(layer: str, stream: Stream | None) -> str:
    """Return a name for the next sample of a layer."""
    return str(getattr(stream, "where", f"layer {layer!r}"))
