"""Whether an interrupted conversion can be resumed: its source must still have what was written, and the
stripes must have what the journal says.

A list may have been reordered since, or a file in it replaced. The set would then have some samples
twice and others never.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from demitasse_striped_io import loops
from demitasse_striped_io.index import Index
from demitasse_striped_io.inputs import Input
from demitasse_striped_io.journal import Journal

COMPARED = 16
"""About how many samples are read again, spread over those that were written, including the last. (Lists
are compared as a whole, by an Input's ``identity``.)"""


def changed(source: Input, index: Index, journal: Journal, stripes: Sequence[Path]) -> str:
    """Say what differs from the journal; empty if nothing does. Raises DataError for a sample that
    cannot be read."""
    if not journal.done:
        return ""
    for stripe, (path, end) in enumerate(zip(stripes, _ends(index, journal), strict=True)):
        found = path.stat().st_size if path.exists() else 0
        if found < end:
            return f"stripe {stripe}, {path}, has {found:,} of the {end:,} bytes that were written"
    step = max(1, (journal.done - 1) // (COMPARED - 1))
    first = (journal.done - 1) % step
    with closing(source.lane(first, 1, step)) as lane:
        for number in range(first, journal.done, step):
            chunk, check = lane.read(1), np.empty(1, np.uint64)
            data = np.ascontiguousarray(chunk.data)
            loops.checksums(data, np.zeros(1, np.int64), np.asarray(chunk.lengths, np.int64), check)
            rows = {"xxh64": check, **chunk.rows}
            if any((journal.table[name][number] != value[0]).any() for name, value in rows.items()):
                return f"sample {number} of {source.name} differs from the one that was written"
    return ""


def _ends(index: Index, journal: Journal) -> list[int]:
    """Return the end of the last record that was written to each stripe."""
    ends = np.zeros(len(index.stripes), np.int64)
    if index.record:
        block, within = np.divmod(np.arange(journal.done), index.in_block)
        within, lengths = within * index.record, np.full(journal.done, index.record)
    else:
        block, within = np.divmod(journal.table["offset"][: journal.done], index.block)
        lengths = journal.table["length"][: journal.done]
    turn, stripe = np.divmod(block, len(ends))
    np.maximum.at(ends, stripe, turn * index.block + within + lengths)
    return [int(end) for end in ends]
