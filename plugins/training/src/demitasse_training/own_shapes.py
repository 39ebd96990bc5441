"""Samples of which each has a shape of its own: which layers have such, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from demitasse import DataError, ModelError, Node, Stream, blamed

if TYPE_CHECKING:
    from demitasse_training.graph import NetGraph

SampleShapes = Mapping[tuple[str, str], tuple[int, ...]]
"""The shapes of one sample by layer and field; of what a user's layer makes by layer and number."""


def varying(graph: NetGraph) -> list[str]:
    """The layers for whose samples a net is planned anew: those of which each has a shape of its own
    and, for one worker, what layers make that run a user's code, without bottoms or where they tell
    shapes only then."""
    alone = graph.workers == 1
    made = [layer for layer, part in users(graph) if alone and (not part.bottoms or part.tells_late)]
    return list(dict.fromkeys([*(f.layer for f in graph.feeds if f.layer in graph.varying), *made]))


def users(graph: NetGraph) -> Iterator[tuple[str, Any]]:
    """What runs a user's code, by its layer's name."""
    for node in graph.nodes:
        for part in users_of(node) if node.phase == "forward" else ():
            yield node.layer, part


def users_of(node: Node) -> list[Any]:
    """What of an operation runs a user's code."""
    return [part for part in node.attributes.values() if hasattr(part, "reshaped")]


def makers(graph: NetGraph) -> Iterator[tuple[str, Any]]:
    """What runs a user's code in layers without bottoms, by the layer's name."""
    return ((layer, part) for layer, part in users(graph) if not part.bottoms)


def made(graph: NetGraph) -> SampleShapes:
    """The shapes of what ``makers`` made last."""
    return {
        (layer, str(top)): shape
        for layer, part in makers(graph)
        for top, shape in enumerate(part.top_shapes)
    }


def coming(graph: NetGraph, streams: Sequence[Stream]) -> SampleShapes:
    """The shapes of the next samples that are not those of their source's first. Raises DataError for
    samples that cannot be read."""
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
    """Raise DataError that names the samples for shapes that a net cannot take."""
    try:
        yield
    except ModelError as error:
        shapes = ", ".join(f"{field} {shape}" for (_, field), shape in samples.items())
        told = {feed.layer: stream for feed, stream in zip(graph.feeds, streams, strict=True)}
        here = "; ".join(dict.fromkeys(_name(layer, told.get(layer)) for layer, _ in samples))
        raise DataError(f"{here}: the net cannot take samples of {shapes}: {error}") from error


def _name(layer: str, stream: Stream | None) -> str:
    """What the next sample of a layer is called."""
    return str(getattr(stream, "where", f"layer {layer!r}"))
