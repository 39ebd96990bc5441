"""What to change when training waits for samples."""

from __future__ import annotations

from demitasse_striped_io.data_command import human
from demitasse_striped_io.measuring import slow_stripes
from demitasse_striped_io.options import cores, physical_memory
from demitasse_striped_io.order import ShuffledOrder
from demitasse_striped_io.source import Source

DECODING = 0.5
"""A larger fraction than this of the time for preparing batches, if spent decoding, is reported."""


def remedies(source: Source) -> list[str]:
    """Return ways to read a striped set faster, the most promising first, judging by its options and by
    what was counted while it was read."""
    options, store, index = source.options, source.store, source.store.index
    found = []
    if options.rate:
        found.append(
            f"rate={options.rate:g} limits each stripe to {human(options.rate)}/s; raise it or leave it "
            f"out"
        )
    for stripe, (rate, others) in slow_stripes(store.tally).items():
        found.append(
            f"stripe {stripe} ({index.stripes[stripe]}) delivers {human(rate)}/s, but the others' "
            f"median is {human(others)}/s; move it to another disk"
        )
    if options.verify == "always":
        found.append("verify=always compares checksums at every read; verify=first does it once")
    if options.threads and options.threads < cores():
        found.append(f"threads={options.threads} read and decode, but this machine has {cores()} cores")
    decoding = _decoding(source)
    if decoding > DECODING:
        size = f"{options.height or 'H'} --width {options.width or 'W'}"
        found.append(
            f"images are decoded each time they are read, which takes {decoding:.0%} of the reading "
            f"time; demitasse data convert ... --raw --height {size} does it once"
        )
    if index.form == "raw" and source.records.direct and store.resident() is None:
        found += _from_files(source)
    if found:
        return found
    if source.records.direct or options.ahead > 8:
        return ["the set is copied from memory: the batch is more than the cores can copy in a step"]
    return [f"ahead={2 * options.ahead} prepares more batches in advance: some take longer than others"]


def _decoding(source: Source) -> float:
    """The fraction of decoding in the time for preparing batches; 0 if nothing is decoded."""
    seconds = getattr(source.records, "seconds", {})
    return float(seconds["decoding"] / total) if (total := sum(seconds.values())) else 0.0


def _from_files(source: Source) -> list[str]:
    store = source.store
    size, found = store.index.record * store.index.samples, []
    if size < physical_memory() // 2:
        found.append(f"memory={size} keeps the set in memory ({human(size)})")
    if isinstance(source.order, ShuffledOrder) and not source.order.in_runs:
        found.append("order=block reads a mini-batch in one piece, order=sample sample by sample")
    folders = {path.parent for path in store.index.stripes}
    if len(folders) == 1:
        found.append(
            f"all stripes are in {folders.pop()}; demitasse data convert ... --folder A --folder B "
            f"distributes them over several disks"
        )
    return found
