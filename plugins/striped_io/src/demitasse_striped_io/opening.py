"""From a specification to a source: a striped set, or another plugin's samples by one reader or
several."""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import islice
from pathlib import Path

from demitasse import DataError, DataSource, DataSpec, expanded, is_folder, is_there
from demitasse_striped_io.index import INDEX, JOURNAL, STRIPE, is_set, read_index
from demitasse_striped_io.options import split_query

LOOKED_AT = 64
"""How many names in a folder are examined for a stripe's."""


def open_striped(spec: DataSpec) -> DataSource | None:
    """Return the source of a specification, or None if it is not ours. Raises DataError."""
    text = os.fspath(spec.source)
    plain, query = split_query(text) if "?" in text and not is_there(text) else (text, {})
    if spec.kind == "readers" or "reader" in query:
        from demitasse_striped_io.readers import open_with_readers

        return open_with_readers(spec, plain, query)
    path = expanded(plain)
    if spec.kind is None and not is_set(path):
        _check_finished(path)
        return None
    from demitasse_striped_io.source import Source

    return Source(path, spec, query)


def _check_finished(path: Path) -> None:
    """Raise DataError for a set whose writing was interrupted, or whose index is missing or damaged."""
    if not is_folder(path):
        return
    if is_there(path / JOURNAL) and not is_there(path / INDEX):
        raise DataError(
            f"{path}: is a striped set whose writing was interrupted: convert again to continue"
        )
    with suppress(OSError), os.scandir(path) as entries:
        # A folder may contain a million images: its first names are enough.
        if any(STRIPE.fullmatch(entry.name) for entry in islice(entries, LOOKED_AT)):
            read_index(path)
