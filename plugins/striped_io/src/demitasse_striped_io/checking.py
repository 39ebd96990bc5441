"""Checking a whole set: the length of every stripe and the checksum of every record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from demitasse import DataError
from demitasse_striped_io.decoding import decode
from demitasse_striped_io.faults import Fault
from demitasse_striped_io.options import Options
from demitasse_striped_io.store import Store

PORTION = 64 << 20


@dataclass(frozen=True)
class Checked:
    """The result of a check: samples and bytes read, faults by sample, and stripes whose length differs
    from the index (being longer is not a fault of any sample)."""

    samples: int
    bytes: int
    faults: tuple[Fault, ...]
    notes: tuple[str, ...]


def check_set(
    path: Path,
    images: bool = False,
    io: str = "page",
    progress: Callable[[int, int], object] | None = None,
) -> Checked:
    """Read every record and compare its checksum; with ``images``, also decode it. Raises DataError if
    there is no set, or if its index or table is damaged."""
    store = Store(path, Options(verify="always", io=io))
    try:
        index, faults = store.index, list[Fault]()
        lengths = store.layout.lengths(np.arange(index.samples))
        ends = np.cumsum(lengths)
        done = 0
        while done < index.samples:
            start = int(ends[done] - lengths[done])
            last = max(done + 1, int(np.searchsorted(ends, start + PORTION, side="right")))
            numbers = np.arange(done, last)
            raw = np.empty(int(ends[last - 1]) - start, np.uint8)
            found = store.read(numbers, raw)
            faults += found
            if images and index.form == "encoded":
                bad = {fault.sample for fault in found}
                good = [n for n in numbers.tolist() if n not in bad]
                faults += _undecodable(store, good, raw, ends - start, lengths)
            done = last
            if progress is not None:
                progress(done, index.samples)
        return Checked(index.samples, int(ends[-1]), tuple(faults), tuple(_notes(store)))
    finally:
        store.close()


def _undecodable(
    store: Store, numbers: list[int], raw: np.ndarray, ends: np.ndarray, lengths: np.ndarray
) -> list[Fault]:
    faults = []
    for number in numbers:
        try:
            decode(raw[ends[number] - lengths[number] : ends[number]], False, None)
        except DataError as error:
            block = store.layout.block_of(number)
            faults.append(Fault(block % store.layout.stripes, block, number, str(error)))
    return faults


def _notes(store: Store) -> list[str]:
    notes = []
    for stripe, (path, length) in enumerate(zip(store.index.stripes, store.index.lengths, strict=True)):
        if path.exists() and (found := path.stat().st_size) > length:
            notes.append(
                f"stripe {stripe}: {path} is longer than when it was written: {found:,} bytes, not "
                f"{length:,}"
            )
    return notes
