"""Samples of which each has a shape of its own: which nets have such, and what comes next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from demitasse import DataError, Feed, Graph, ModelError, Stream, blamed

SampleShapes = Mapping[tuple[str, str], tuple[int, ...]]
"""The shapes of one sample by layer and field; of what a user's layer makes by layer and number."""


def follows(graph: Graph) -> bool:
    """Whether a net is planned anew for the shapes of its samples: where one at a time comes of a source
    whose samples ``vary``, or a layer makes them that runs a user's code."""
    return any(map(_varies, graph.feeds)) or any(True for _ in makers(graph))


def _varies(feed: Feed) -> bool:
    return feed.batch == 1 and bool(getattr(feed.source, "varies", False))


def makers(graph: Graph) -> Iterator[tuple[str, Any]]:
    """What runs a user's code in layers without bottoms, by the layer's name."""
    for node in graph.nodes:
        for part in node.attributes.values():
            if node.phase == "forward" and hasattr(part, "reshaped") and not part.bottoms:
                yield node.layer, part


def made(graph: Graph) -> SampleShapes:
    """The shapes of what ``makers`` made last."""
    return {
        (layer, str(top)): shape
        for layer, part in makers(graph)
        for top, shape in enumerate(part.top_shapes)
    }


def coming(feeds: Sequence[Feed], streams: Sequence[Stream]) -> SampleShapes:
    """The shapes of the next samples that are not those of their source's first. Raises DataError for
    samples that cannot be read."""
    found: dict[tuple[str, str], tuple[int, ...]] = {}
    for feed, stream in zip(feeds, streams, strict=True):
        if _varies(feed):
            with blamed(stream, "in coming", f"layer {feed.layer!r}"):
                now = stream.coming()  # type: ignore[attr-defined]
                told = {(feed.layer, name): tuple(now[name]) for name in feed.tensors}
            usual = feed.source.fields
            found |= {key: shape for key, shape in told.items() if shape != usual[key[1]].shape}
    return found


@contextmanager
def explained(feeds: Sequence[Feed], streams: Sequence[Stream], samples: SampleShapes) -> Iterator[None]:
    """Raise DataError that names the samples for shapes that a net cannot take."""
    try:
        yield
    except ModelError as error:
        shapes = ", ".join(f"{field} {shape}" for (_, field), shape in samples.items())
        told = {feed.layer: stream for feed, stream in zip(feeds, streams, strict=True)}
        here = "; ".join(dict.fromkeys(_name(layer, told.get(layer)) for layer, _ in samples))
        raise DataError(f"{here}: the net cannot take samples of {shapes}: {error}") from error


def _name(layer: str, stream: Stream | None) -> str:
    """What the next sample of a layer is called."""
    return str(getattr(stream, "where", f"layer {layer!r}"))
