"""The opened stripes of a set: pieces of them are read into memory, checked and counted; faults are
explained."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, in_pages
from demitasse_striped_io import loops
from demitasse_striped_io.faults import Fault
from demitasse_striped_io.index import Index, read_index, read_table
from demitasse_striped_io.layout import Layout
from demitasse_striped_io.mapping import Mapped
from demitasse_striped_io.options import Options, physical_memory

DIVIDED = 1 << 21
"""Reads of at least so many bytes are divided among threads: handing over a part takes as long as
copying some 200 KB."""
BOUNCE = 8 << 20
"""Bytes of memory in which a thread's direct reads are realigned."""
NOTHING = np.empty(0, np.uint8)
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of opening a file that mean a lack of resources, not that the file is missing."""

Fetch = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]
"""Reads (pieces, out, checks, verify, status, tally), as ``loops.fetch`` does."""


class Store:
    """An open set. ``tally`` (stripes, 4) int64 counts reads, bytes, nanoseconds and samples by
    stripe."""

    def __init__(self, path: Path, options: Options, index: Index | None = None) -> None:
        """Raises DataError for anything but a set; a missing stripe is a fault of its samples."""
        self.index = index = index or read_index(path)
        self.folder = path if path.is_dir() else path.parent
        self.name, self.options = str(path), options
        self.table: Mapping[str, np.ndarray] = read_table(self.folder, self.index)
        self.layout = Layout(self.index, self.table)
        expected = self.layout.stripe_lengths()
        if expected != self.index.lengths:
            raise DataError(f"{path}: its index is damaged: its records do not end where its stripes do")
        self.tally = np.zeros((len(self.index.stripes), 4), np.int64)
        self._checks = self.table["xxh64"]
        self._small: dict[tuple[str, str], np.ndarray] = {}
        self._seen = np.zeros(self.index.samples, np.uint8)
        self._lock, self._loading = threading.Lock(), threading.Lock()
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._local = threading.local()
        self._records: np.ndarray | None = None
        size = self.index.record * self.index.samples
        self._kept = 0 < size <= options.resident()
        self._maps: Mapped | None = None
        self._mappable = self._may_be_mapped()
        self._all_seen = False
        about = (index.record, index.in_block, index.block, len(index.stripes)) if index.record else ()
        self._geometry = np.array(about, np.int64)
        self.load_faults: dict[int, Fault] = {}
        self._open()
        self._fetch = self._fetcher()

    def _open(self) -> None:
        self.missing: dict[int, str] = {}
        self.files = np.full(len(self.index.stripes), -1, np.int32)
        flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if self.options.io == "direct" else 0)
        flags |= os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)  # do not wait for a pipe's writer
        for stripe, path in enumerate(self.index.stripes):
            if not self.index.lengths[stripe]:
                continue  # a small set has empty stripes
            try:
                self.files[stripe] = file = os.open(path, flags)
            except OSError as error:
                why = error.strerror
                if error.errno == errno.EINVAL and self.options.io == "direct":
                    why = "its file system has no direct I/O; use io=page"
                if error.errno in EXHAUSTED:  # not a fault of the set: nothing is skipped
                    self._close_files()
                    raise DataError(f"{path}: {why}; {self._needed()}") from error
                self.missing[stripe] = f"{path}: {why}"
                continue
            kind = os.fstat(file).st_mode
            if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
                os.close(file)
                self.files[stripe] = -1
                self.missing[stripe] = f"{path}: is a pipe or a device"

    def _needed(self) -> str:
        count = sum(length > 0 for length in self.index.lengths)
        told = f"a set on {count} stripes needs {count} open files at a time"
        with suppress(ImportError):
            import resource

            told += f" of the {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,} of a process (ulimit -n)"
        return told

    def _fetcher(self) -> Fetch:
        options = self.options
        if options.io == "mpi":
            from demitasse_striped_io.parallel_fs import MpiFiles

            self._mpi = MpiFiles(self.index.stripes, self.files, options)
            plain: Fetch = self._mpi.fetch
        else:
            plain = self._compiled
        if options.rate or options.patience:
            from demitasse_striped_io.stripe_queues import StripeQueues

            self._queues = StripeQueues(len(self.files), plain, options.rate, options.patience)
            return self._queues.fetch
        return plain

    def _compiled(
        self,
        pieces: np.ndarray,
        out: np.ndarray,
        checks: np.ndarray,
        verify: np.ndarray,
        status: np.ndarray,
        tally: np.ndarray,
    ) -> None:
        bounce = NOTHING
        if self.options.io == "direct":
            bounce = getattr(self._local, "bounce", NOTHING)
            if not len(bounce):
                bounce = self._local.bounce = np.empty(BOUNCE + loops.PAGE, np.uint8)
        loops.fetch(self.files, pieces, out, checks, verify, status, tally, bounce)

    def read(self, numbers: np.ndarray, out: np.ndarray) -> list[Fault]:
        """Read records, one after the other, into ``out`` (uint8, flat, of their total length); return
        those that could not be read. Raises DataError if the store is closed."""
        if self._closed:
            raise DataError(f"{self.name}: the source is closed")
        parts = min(len(numbers), 1 + out.nbytes // DIVIDED)
        if parts > 1:
            parts = min(parts, self.options.workers)
        if self._copied(numbers, out, parts):
            return []
        pieces = self.layout.pieces(numbers)
        status = np.empty(len(numbers), np.uint8)
        checks = self._checks[numbers]
        verify = self._to_verify(numbers)
        if parts == 1 or self.options.rate or self.options.patience or self.options.io == "mpi":
            tally = np.zeros_like(self.tally)
            self._fetch(pieces, out, checks, verify, status, tally)
            self._count(tally)
        else:
            cuts = np.arange(parts + 1) * len(numbers) // parts

            def part(i: int) -> None:
                some = slice(cuts[i], cuts[i + 1])
                tally = np.zeros_like(self.tally)
                self._fetch(pieces[some], out, checks[some], verify[some], status[some], tally)
                self._count(tally)

            self.divide(part, parts)
        if self.options.verify == "first" and not self._all_seen:
            self._seen[numbers[status == loops.READ]] = 1
            self._all_seen = bool(self._seen.all())
        return [self.fault(int(numbers[i]), int(status[i])) for i in np.flatnonzero(status)]

    def _may_be_mapped(self) -> bool:
        """Whether records may be copied from a map of the stripes once they have been read.

        The system's copying takes half as long again as copying from a map (10 and 16 GB/s on one core),
        and a call for each small record takes as long as copying it. But what a map contains is not
        checked when it is copied. So a record is first read by a system call, and checked. Only records
        that were read this way, of a set that fits twice into memory, then come from the map.
        """
        options = self.options
        plain = options.io == "page" and options.verify == "first" and options.memory != 0
        small = sum(self.index.lengths) <= physical_memory() // 2
        return plain and small and not options.rate and not options.patience

    def _copied(self, numbers: np.ndarray, out: np.ndarray, parts: int) -> bool:
        """Copy records from the map, in so many parts. Returns false if they have to be read instead,
        because some were not seen yet, or a stripe was truncated since."""
        if not self._mappable or (maps := self._maps or self._map()) is None:
            return False
        if not self.index.record:
            return self._copied_by_pieces(maps, numbers, out)
        if parts == 1:
            return self._gathered(maps, numbers, out) and self._still(maps)
        size, there = self.index.record, [False] * parts

        def part(i: int) -> None:
            some = slice(len(numbers) * i // parts, len(numbers) * (i + 1) // parts)
            there[i] = self._gathered(maps, numbers[some], out[some.start * size : some.stop * size])

        self.divide(part, parts)
        return all(there) and self._still(maps)

    def _gathered(self, maps: Mapped, numbers: np.ndarray, out: np.ndarray) -> bool:
        tally = np.zeros(self.tally.shape, np.int64)
        about = maps.addresses, self._geometry, self._seen, numbers
        there: bool = loops.gather_mapped(*about, out, tally)
        if there:
            self._count(tally)
        return there

    def _copied_by_pieces(self, maps: Mapped, numbers: np.ndarray, out: np.ndarray) -> bool:
        if not self._seen[numbers].all():
            return False
        tally = np.zeros_like(self.tally)
        loops.copy_mapped(maps.addresses, self.layout.pieces(numbers), out, tally)
        self._count(tally)
        return self._still(maps)

    def _still(self, maps: Mapped) -> bool:
        if maps.whole():
            return True
        self._mappable = False  # from now on, use system calls, which identify what is missing
        return False

    def prepare(self) -> None:
        """Do one-time work now, so that no worker waits for it: load a small set into memory, or map a
        larger one."""
        if self.resident() is None and self._mappable:
            self._map()

    def _map(self) -> Mapped | None:
        with self._lock:
            if self._maps is None:
                try:
                    self._maps = Mapped(self.files.tolist(), self.index.lengths)
                except OSError:
                    self._mappable = False  # records are read by system calls, which identify faults
            return self._maps

    def small(self, name: str, out: np.ndarray) -> Callable[[np.ndarray], Any]:
        """Return a function that writes a field stored with the index into ``out``, for records by
        number."""
        key = name, out.dtype.str
        if key not in self._small:
            self._small[key] = self.table[name].astype(out.dtype, copy=False)
        take = self._small[key].take
        return lambda numbers: take(numbers, 0, out, "clip")  # all are in range; "raise" copies twice

    def divide(self, part: Callable[[int], None], parts: int) -> None:
        """Call ``part`` with every number below ``parts``, in threads, the last one in this thread.
        Raises the error of the first that failed."""
        if parts == 1:
            part(0)
            return
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.options.workers, thread_name_prefix="stripe reader")
            futures = [self._pool.submit(part, i) for i in range(parts - 1)]
        try:
            part(parts - 1)
        finally:
            wait(futures)
        for future in futures:
            future.result()

    def resident(self) -> np.ndarray | None:
        """Return all records, flat, if the set is small enough to be kept in memory; they are read and
        checked at the first call. None for a larger set or records of varying length."""
        if self._records is None and self._kept:
            with self._loading:
                if self._records is None:
                    records = in_pages(self.index.record * self.index.samples)
                    found = self.read(np.arange(self.index.samples), records)
                    self.load_faults = {fault.sample: fault for fault in found}
                    self._records = records
        return self._records

    @property
    def announced(self) -> bool:
        """Whether announcing records is worthwhile: not if they are copied from memory."""
        return self.resident() is None and not (self._all_seen and self._maps is not None)

    def soon(self, numbers: np.ndarray) -> None:
        """Ask the system to read records into its page cache."""
        pieces = self.layout.pieces(numbers)
        loops.advise(self.files, pieces[np.lexsort((pieces[:, 1], pieces[:, 0]))])

    def fault(self, number: int, status: int) -> Fault:
        """Explain what is wrong with a record that could not be read."""
        stripe, offset, length, _ = (int(n) for n in self.layout.pieces(np.array([number]))[0])
        path = self.index.stripes[stripe]
        if stripe in self.missing:
            what = f"the stripe is missing: {self.missing[stripe]}"
        elif status == loops.CUT_OFF:
            found = os.fstat(self.files[stripe]).st_size
            what = (
                f"{path} is cut off: it has {found:,} of {self.index.lengths[stripe]:,} bytes, but the "
                f"sample ends at {offset + length:,}"
            )
        elif status == loops.DAMAGED:
            what = f"{path}, bytes {offset:,} to {offset + length:,}: its checksum is wrong"
        elif status == loops.LATE:
            what = f"{path}: the stripe is slow: nothing arrived in {self.options.patience:g} s"
        else:
            reason = self._reason(stripe, offset, length)
            what = f"{path}, bytes {offset:,} to {offset + length:,}: {reason}"
        return Fault(stripe, self.layout.block_of(number), number, what)

    def _reason(self, stripe: int, offset: int, length: int) -> str:
        try:
            with self.index.stripes[stripe].open("rb", buffering=0) as file:
                file.seek(offset)
                file.read(length)
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return "could not be read, but a second attempt succeeded"

    def _to_verify(self, numbers: np.ndarray) -> np.ndarray:
        if self.options.verify == "always":
            return np.ones(len(numbers), np.uint8)
        if self.options.verify == "never":
            return np.zeros(len(numbers), np.uint8)
        return np.asarray(self._seen[numbers] ^ 1)

    def _count(self, tally: np.ndarray) -> None:
        with self._lock:
            self.tally += tally

    def close(self) -> None:
        """Close the stripes, after reads in progress have finished."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        for name in ("_queues", "_mpi"):
            held: Any = getattr(self, name, None)
            if held is not None:
                held.close()
        with self._lock:  # threads that still copy from the memory keep it alive
            self._maps, self._mappable = None, False
        self._close_files()

    def _close_files(self) -> None:
        for stripe, file in enumerate(self.files.tolist()):
            if file >= 0:
                os.close(file)
                self.files[stripe] = -1
