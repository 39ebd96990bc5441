"""Writing a striped set: in parallel, whole or not at all, and resumable after a kill.

Threads read (and decode) chunks of the input, each in its own lane. In the order of the samples, the
chunks are given their places, written, again by threads, and entered in the journal once they are on
disk. The index comes last. With one rename it replaces that of an earlier set, whose stripes have other
names and are removed only then.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError
from demitasse_striped_io import journal as journals
from demitasse_striped_io import loops
from demitasse_striped_io.index import (
    BLOCK,
    INDEX,
    JOURNAL,
    RUN,
    STRIPE,
    STRIPES,
    TAG,
    Index,
    read_index,
    record_bytes,
    write_index,
    written_whole,
)
from demitasse_striped_io.inputs import Chunk, Input, Lane
from demitasse_striped_io.layout import Layout
from demitasse_striped_io.options import check_system, cores
from demitasse_striped_io.parallel_fs import Striping, create_stripe
from demitasse_striped_io.resuming import changed

CHUNK = 8 << 20
"""About how many bytes are read, and written, at a time."""
MOST_IN_CHUNK = 4096
KEPT_SAFE = 256 << 20
"""After so many bytes, what was written is flushed to disk and entered in the journal."""


@dataclass(frozen=True)
class Making:
    """How a set is laid out. ``folders`` get the stripes in turn; if empty, the set's own folder
    does."""

    stripes: int = STRIPES
    block: int = BLOCK
    run: int = RUN
    folders: tuple[Path, ...] = ()
    threads: int = 0
    decoding: dict[str, Any] = field(default_factory=dict)
    striping: Striping = field(default_factory=Striping)


class Writer:
    """Writes one set. ``resumed`` is how many samples an earlier writer had written."""

    def __init__(self, target: Path, source: Input, making: Making, force: bool) -> None:
        """Raises DataError if the target exists already, or the layout is not possible."""
        check_system(str(target))
        self.target, self.source, self.making = target, source, making
        record = record_bytes(source.main) if source.form == "raw" else 0
        if making.stripes < 1 or making.block < 1 or making.run < 1:
            raise DataError(
                f"{making.stripes} stripes, blocks of {making.block} bytes, runs of {making.run} "
                f"samples (valid: 1 or more)"
            )
        striping = making.striping
        if min(making.threads, striping.factor, striping.unit) < 0:
            raise DataError(
                f"{making.threads} threads, a striping of {striping.factor} targets in blocks of "
                f"{striping.unit} bytes (valid: 0, for the default, or more)"
            )
        if record > making.block:
            raise DataError(
                f"a sample has {record:,} bytes, but a block only {making.block:,}: give larger blocks"
            )
        self._record = record
        self._force = force
        self._lock = threading.Lock()
        self.threads = making.threads or max(2, cores())
        self.resumed = 0
        self.paths: list[Path] = []
        self.index: Index
        self.journal: journals.Journal

    def write(self, progress: Callable[[int, int], object] | None = None) -> Index:
        """Write, or continue to write, until the set is complete. ``progress`` is called with the
        samples done and all samples. Raises DataError that names stripe, block and sample, or says that
        somebody else is writing there; what was written is kept."""
        with ExitStack() as stack:
            try:
                stack.callback(os.close, self._held())
                self._prepare()
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or error
                raise DataError(f"{self.target}: cannot be written: {reason}") from error
            return self._written(progress or (lambda done, size: None))

    def _held(self) -> int:
        """Return the open folder of the set, locked, because a second writer would continue this one's
        journal. Raises DataError, OSError."""
        self.target.mkdir(parents=True, exist_ok=True)
        folder = os.open(self.target, os.O_RDONLY)
        try:
            with suppress(ImportError):  # a system without locks
                import fcntl

                with suppress(OSError):  # a network folder without locks
                    try:
                        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except BlockingIOError as error:
                        raise DataError(
                            f"{self.target}: is being written by another process; wait for it, or name "
                            f"another folder"
                        ) from error
        except BaseException:
            os.close(folder)
            raise
        return folder

    def _written(self, progress: Callable[[int, int], object]) -> Index:
        try:
            self._files = [self._opened(i, path) for i, path in enumerate(self.paths)]
            try:
                self._run(progress)
                lengths = Layout(self.index, self.journal.table).stripe_lengths()
                self.index = _with(self.index, lengths=lengths)
                for stripe, file in enumerate(self._files):
                    with self._naming(stripe, "its end"):
                        os.ftruncate(file, self.index.lengths[stripe])
                        os.fsync(file)
            finally:
                for file in self._files:
                    os.close(file)
        finally:
            self.journal.close()
        return self._finish()

    def _prepare(self) -> None:
        """Find or begin the journal."""
        path, settings = self.target / JOURNAL, self._settings()
        begun = self._tag_to_go_on(path, settings)
        if begun is not None and not self._goes_on(path, begun):
            begun = None
        if begun is None:
            self._check_free()
            tag = secrets.token_hex(3)
            self._lay_out(tag)
            self.journal = journals.begin(path, {**settings, "tag": tag}, self.index.columns())
        self.resumed = self.journal.done

    def _lay_out(self, tag: str) -> None:
        self.paths = self._paths(tag)
        for folder in {path.parent for path in self.paths}:
            folder.mkdir(parents=True, exist_ok=True)
        self.index = self._empty_index(tag)

    def _goes_on(self, path: Path, tag: str) -> bool:
        """Whether what was written is still what would be written now. If not, it is removed if
        ``force`` is set; otherwise this raises DataError."""
        self._lay_out(tag)
        self.journal = journals.resume(path, self.index.columns())
        if not (why := changed(self.source, self.index, self.journal, self.paths)):
            return True
        if not self._force:
            raise DataError(
                f"{self.target}: a conversion was interrupted here and cannot continue: {why}; "
                f"force (--force) starts over"
            )
        self._remove(self.journal.header)
        return False

    def _settings(self) -> dict[str, Any]:
        """The settings that must be the same to resume an interrupted conversion."""
        source, making = self.source, self.making
        return {
            "source": source.name,
            "samples": source.size,
            "list": source.identity,
            "form": source.form,
            "main": {k: [list(f.shape), f.dtype] for k, f in source.main.items()},
            "small": {k: [list(f.shape), f.dtype] for k, f in source.small.items()},
            "stripes": making.stripes,
            "block": making.block,
            "run": making.run,
            "folders": [str(f.absolute()) for f in making.folders],
            "decoding": making.decoding,
        }

    def _tag_to_go_on(self, path: Path, settings: Mapping[str, Any]) -> str | None:
        """Return the tag in the names of the stripes that a conversion with the same settings has begun;
        None if there is none. Stripes of other conversions are removed if ``force`` is set, as are those
        here of a conversion whose journal is damaged."""
        if not path.exists():
            return None
        try:
            found = journals.header_of(path)
            if not TAG.fullmatch(str(found.get("tag"))):
                raise DataError(
                    f"{path}: the journal is damaged: it names no stripes; force starts over"
                )
        except DataError:
            if not self._force:
                raise
            self._remove_unknown()
            return None
        differ = [name for name in settings if found.get(name) != settings[name]]
        if not differ:
            return str(found["tag"])
        if not self._force:
            told = f"{found.get(differ[0])!r} there, {settings[differ[0]]!r} now"
            if differ == ["list"]:
                told = f"{self.source.name} lists other samples now, or in another order"
            raise DataError(
                f"{self.target}: another conversion was interrupted here ({', '.join(differ)} differ: "
                f"{told}); force (--force) starts over"
            )
        self._remove(found)
        return None

    def _check_free(self) -> None:
        """Raise DataError if a set, or anything else, is at the target."""
        names = [path.name for path in self.target.iterdir()]
        if all(name == JOURNAL or name.endswith(".partial") for name in names):
            return
        if not (self.target / INDEX).exists():
            raise DataError(f"{self.target}: is a folder with other contents; name a new one")
        if not self._force:
            raise DataError(f"{self.target} already exists; force (--force) overwrites it")

    def _empty_index(self, tag: str) -> Index:
        source, making = self.source, self.making
        return Index(
            form=source.form,
            samples=source.size,
            main=source.main,
            small=source.small,
            record=self._record,
            block=making.block,
            stripes=tuple(self.paths),
            lengths=(0,) * making.stripes,
            run=making.run,
            decoding=making.decoding,
            source=source.name,
            table=f"table-{tag}.bin",
        )

    def _paths(self, tag: str) -> list[Path]:
        folders = self.making.folders
        if not folders:
            return [self.target / f"stripe-{i:02d}-{tag}.bin" for i in range(self.making.stripes)]
        name = self.target.name
        return [
            folders[i % len(folders)].absolute() / f"{name}.stripe-{i:02d}-{tag}.bin"
            for i in range(self.making.stripes)
        ]

    def _remove(self, header: dict[str, Any]) -> None:
        """Remove the stripes of a conversion that nobody continues."""
        said = header.get("folders", ())
        folders = [each for each in said if isinstance(each, str)] if isinstance(said, list) else []
        for folder in [self.target, *map(Path, folders)]:
            for path in folder.glob(f"*stripe-*-{header['tag']}.bin"):
                path.unlink()
        (self.target / JOURNAL).unlink()

    def _remove_unknown(self) -> None:
        """Remove a damaged journal, and stripes in the set's folder that no index names."""
        with suppress(DataError):
            if not (self.target / INDEX).exists():
                kept = frozenset[Path]()
            else:
                kept = frozenset(read_index(self.target).stripes)
            for path in self.target.iterdir():
                if STRIPE.fullmatch(path.name) and path not in kept:
                    path.unlink()
        (self.target / JOURNAL).unlink()

    def _opened(self, stripe: int, path: Path) -> int:
        with self._naming(stripe, "its beginning"):
            if not path.exists():
                create_stripe(path, stripe, self.making.striping)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _naming(self, stripe: int, where: str) -> _Naming:
        return _Naming(f"{self.target}: stripe {stripe}, {where}: {self.paths[stripe]}")

    def _run(self, progress: Callable[[int, int], object]) -> None:
        size, lanes = self.source.size, self.threads
        count = max(1, min(MOST_IN_CHUNK, CHUNK // max(1, self.source.typical)))
        starts = list(range(self.journal.done, size, count))
        open_lanes: dict[int, Lane] = {}
        done = self._Pending(self.journal.done, self.journal.end)

        def read(number: int) -> Chunk:
            lane = open_lanes.get(number % lanes)
            if lane is None:
                lane = self.source.lane(starts[number], count, lanes * count)
                open_lanes[number % lanes] = lane
            return lane.read(min(count, size - starts[number]))

        # One thread per lane, so that a lane's chunks are read in turn and never two at once.
        readers = [ThreadPoolExecutor(1, thread_name_prefix="convert") for _ in range(lanes)]
        writers = ThreadPoolExecutor(lanes, thread_name_prefix="write")
        try:
            reading: list[Future[Chunk]] = []
            for number in range(len(starts)):
                while len(reading) < min(len(starts), number + 2 * lanes):
                    next_ = len(reading)
                    reading.append(readers[next_ % lanes].submit(read, next_))
                chunk = reading[number].result()
                reading[number] = Future()  # to free its memory
                self._place(chunk, done, writers)
                if done.bytes >= KEPT_SAFE or number == len(starts) - 1:
                    self._make_safe(done)
                progress(done.samples, size)
        finally:
            for pool in (*readers, writers):
                pool.shutdown(cancel_futures=True)
            for lane in open_lanes.values():
                lane.close()

    @dataclass
    class _Pending:
        """The next free place, and what is being written."""

        samples: int
        end: int
        bytes: int = 0
        writing: list[Future[None]] = field(default_factory=list)

    def _place(self, chunk: Chunk, done: Writer._Pending, writers: ThreadPoolExecutor) -> None:
        """Give a chunk's records their places, and start to write them."""
        count, table, block = len(chunk.lengths), self.journal.table, self.making.block
        rows = slice(done.samples, done.samples + count)
        starts = np.cumsum(chunk.lengths) - chunk.lengths
        data = np.ascontiguousarray(chunk.data)
        loops.checksums(data, starts, np.asarray(chunk.lengths, np.int64), table["xxh64"][rows])
        for name, values in chunk.rows.items():
            table[name][rows] = values
        if self._record:
            numbers = np.arange(rows.start, rows.stop)
            turn, within = np.divmod(numbers, self.index.in_block)
            offsets = turn * block + within * self._record
        else:
            offsets = np.empty(count, np.int64)
            at = done.end
            for i, length in enumerate(chunk.lengths.tolist()):
                if length > block:
                    raise DataError(
                        f"{self.target}: sample {rows.start + i} has {length:,} bytes, but a block only "
                        f"{block:,}: give larger blocks"
                    )
                if at % block + length > block:
                    at += block - at % block
                offsets[i] = at
                at += length
            table["offset"][rows], table["length"][rows] = offsets, chunk.lengths
        ends = offsets + chunk.lengths
        cuts = np.flatnonzero(
            (offsets[1:] != ends[:-1]) | (offsets[1:] // block != offsets[:-1] // block)
        )
        firsts = np.concatenate([[0], cuts + 1])
        lasts = np.concatenate([cuts, [count - 1]])
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            part = data[starts[first] : starts[last] + chunk.lengths[last]]
            number = rows.start + first
            done.writing.append(writers.submit(self._write, part, int(offsets[first]), number))
        done.samples, done.end = rows.stop, int(ends[-1])
        done.bytes += int(chunk.lengths.sum())

    def _write(self, data: np.ndarray, place: int, number: int) -> None:
        block = place // self.making.block
        turn, stripe = divmod(block, self.making.stripes)
        offset = turn * self.making.block + place % self.making.block
        with self._naming(stripe, f"block {block}, sample {number}"):
            view = data.data
            while view:
                wrote = os.pwrite(self._files[stripe], view, offset)
                view, offset = view[wrote:], offset + wrote

    def _make_safe(self, done: Writer._Pending) -> None:
        """Wait for what is being written, flush it to disk, and enter it in the journal."""
        for future in done.writing:
            future.result()
        for stripe, file in enumerate(self._files):
            with self._naming(stripe, f"samples {self.journal.done} to {done.samples}"):
                os.fdatasync(file)
        before = self.journal.done
        with _Naming(f"{self.target}: {JOURNAL}, samples {before} to {done.samples}"):
            self.journal.add(done.samples - before, done.end)
        done.bytes = 0
        done.writing.clear()

    def _finish(self) -> Index:
        """Write the table and then the index, with which the set exists; then remove what it
        replaces."""
        before: Index | None = None
        if (self.target / INDEX).exists():
            try:
                before = read_index(self.target)
            except DataError:
                before = None  # damaged: the names of its stripes are unknown
        body = b"".join(column.tobytes() for column in self.journal.table.values())
        check = f"{int(loops.xxh64(np.frombuffer(body, np.uint8))):016x}"
        self.index = _with(self.index, table_check=check)
        try:
            written_whole(self.target / self.index.table, body)
            write_index(self.target, self.index)
        except OSError as error:
            raise DataError(f"{self.target}: cannot be written: {error.strerror or error}") from error
        # An index may be a stranger's: files it names are removed only if they are named like stripes.
        old = () if before is None else (p for p in before.stripes if STRIPE.search(p.name))
        for path in (*old, *(() if before is None else [self.target / before.table])):
            if path not in (*self.index.stripes, self.target / self.index.table):
                path.unlink(missing_ok=True)
        (self.target / JOURNAL).unlink(missing_ok=True)
        return self.index


def _with(index: Index, **changes: Any) -> Index:
    return Index(**{**vars(index), **changes})


class _Naming:
    """Turns an OSError into a DataError that says where it happened, and that nothing is lost."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            more = "; free some space" if full else ""
            raise DataError(
                f"{self.where}: {error.strerror or error}{more}; convert again to continue from there"
            ) from error
