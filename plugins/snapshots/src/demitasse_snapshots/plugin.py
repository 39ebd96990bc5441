"""Hooks of the snapshots plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from demitasse import LayerType, ModelReader, Weights, hookimpl


@hookimpl
def model_reader(path: Path, layer_types: Mapping[str, LayerType]) -> ModelReader | None:
    """Open a snapshot. Returns None for a file with another suffix unless it begins like a snapshot.
    Raises SnapshotError if the header is not one that we can read."""
    from demitasse_snapshots.layout import MAGIC
    from demitasse_snapshots.model_reader import SnapshotReader

    path = Path(path)
    if path.suffix != ".demitasse" and path.is_file():
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
    return SnapshotReader(path)


@hookimpl
def model_writer(path: Path, weights: Weights) -> None:
    """Write a snapshot, whole or not at all. If it raises SnapshotError, an existing file is
    unchanged."""
    from demitasse_snapshots.model_writer import write_snapshot

    write_snapshot(Path(path), weights)
