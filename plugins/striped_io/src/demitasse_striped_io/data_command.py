"""``demitasse data``: show, check, convert and measure striped sets, and predict shared storage."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from demitasse import check_writable, launched, write_json
from demitasse_striped_io.index import BLOCK, INDEX, RUN, STRIPES
from demitasse_striped_io.order import ORDERS

Command = TypeVar("Command", bound=Callable[..., Any])

PATIENCE = 2.0
"""Seconds between two progress lines."""
SHOWN = 20


class Bytes(click.ParamType):  # type: ignore[type-arg]  # click 8.1 takes none
    """A number of bytes: ``4M``, ``256M``, ``1G``."""

    name = "bytes"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        from demitasse_striped_io.options import bytes_of

        try:
            return int(bytes_of(str(value)))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a number of bytes such as 4M", param, ctx)


class Progress:
    """Reports progress on standard error every few seconds; on a terminal, in a single line."""

    def __init__(self, what: Sequence[str]) -> None:
        self._what, self._phase = what, -1
        self._before: float = math.inf
        self._said = time.monotonic()

    def __call__(self, done: int, size: int) -> None:
        now = time.monotonic()
        if done < self._before:  # measure the pace from here: much may have been unpacked before
            self._phase += 1
            self._first, self._begin = done, now
        self._before = done if done < size else math.inf  # another phase follows
        if now - self._said < PATIENCE and done < size:
            return
        self._said = now
        what = self._what[min(self._phase, len(self._what) - 1)]
        left, end = "", "\n"
        if self._first < done < size:
            left = f", {(size - done) * (now - self._begin) / (done - self._first):.0f} s left"
        line = f"{what} {done:,} of {size:,}{left}"
        if sys.stderr.isatty():  # overwrite the line before, which may have been longer
            line = line.ljust(60)
            end = "\r" if done < size else "\n"
        click.echo(line + end, err=True, nl=False)


def human(count: float) -> str:
    """Return a size as ``3.52 MiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return aligned columns, the first to the left, the others to the right."""
    cells = [tuple(head), *(tuple(map(str, row)) for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    )


def _json_option(function: Command) -> Command:
    return click.option(
        "--json",
        "json_path",
        metavar="FILE",
        callback=_writable,
        help="Write the result as JSON; - is standard output.",
    )(function)


def _writable(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
    """Return the path if it can be written. Raises OSError."""
    check_writable({"--json": path})
    return path


def _say(json_path: str | None, record: dict[str, Any], lines: Sequence[str]) -> None:
    try:
        if json_path is not None:
            write_json(json_path, record)
    finally:
        for line in lines if json_path != "-" else ():
            click.echo(line)


@click.group("data", help="Show, check, convert and measure striped sets; predict shared storage.")
def command() -> None:
    """Each sub-command says what it did, as lines or as JSON."""


def _state(file: Path, length: int) -> str:
    try:
        found = file.stat().st_size
    except OSError as error:
        return "missing" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
    return "whole" if found >= length else f"cut off at {found:,}"


def _faults(count: int) -> str:
    return f"{count:,} fault" if count == 1 else f"{count:,} faults"


@command.command(
    "show",
    short_help="Show what a striped set holds, and where.",
    help="Show what the striped set SET holds and where its stripes are.",
    epilog="Example: demitasse data show train.set",
)
@click.argument("path", metavar="SET", type=click.Path(path_type=Path))
@_json_option
def show(path: Path, json_path: str | None) -> None:
    """From the index alone, and the files' lengths."""
    from demitasse_striped_io.index import read_index

    index = read_index(path)
    stripes = []
    for number, (file, length) in enumerate(zip(index.stripes, index.lengths, strict=True)):
        state = _state(file, length) if length else "empty"
        stripes.append({"stripe": number, "path": str(file), "bytes": length, "state": state})
    at = (path.parent if path.name == INDEX else path) / index.table
    table_of = {"path": str(at), "bytes": index.table_bytes(), "state": _state(at, index.table_bytes())}
    fields = {
        **{name: ("record", f) for name, f in index.main.items()},
        **{name: ("table", f) for name, f in index.small.items()},
    }
    record = {
        "samples": index.samples,
        "form": index.form,
        "fields": {n: {"shape": f.shape, "dtype": f.dtype, "in": w} for n, (w, f) in fields.items()},
        "bytes": sum(index.lengths),
        "block": index.block,
        "run": index.run,
        "options": dict(index.decoding or {}),
        "source": index.source,
        "stripes": stripes,
        "table": table_of,
    }
    about = ", ".join(f"{n} {f.shape} {f.dtype}" for n, (_, f) in fields.items())
    used = [s for s in stripes if s["bytes"]]
    lines = [
        f"{index.samples:,} samples, {index.form}, from {index.source}",
        f"fields: {about}",
        f"{human(record_bytes := sum(index.lengths))} on {len(used)} of {len(stripes)} stripes, "
        f"blocks of {human(index.block)}, runs of {index.run}",
    ]
    if index.decoding:
        lines.append("read with: " + ", ".join(f"{k}={v}" for k, v in index.decoding.items()))
    if len(used) < len(stripes):
        better = -(-record_bytes // len(stripes))
        lines.append(f"blocks of {human(better)} would use all stripes")
    wrong = [s for s in used if s["state"] != "whole"]
    lines += [f"stripe {s['stripe']}: {s['path']}: {s['state']}" for s in wrong[:SHOWN]]
    if table_of["state"] != "whole":
        lines.append(f"{at}: {table_of['state']}: without this table no sample can be read")
    count = f"{len(wrong)} stripe{'s are' if len(wrong) > 1 else ' is'} incomplete"
    lines.append(count if wrong else "all stripes are complete")
    _say(json_path, record, lines)


@command.command(
    "check",
    epilog="Example: demitasse data check train.set --images",
    short_help="Compare checksums.",
    help="Read the whole striped set SET and compare checksums; the exit status is 1 for a fault.",
)
@click.argument("path", metavar="SET", type=click.Path(path_type=Path))
@click.option("--images", is_flag=True, help="Decode encoded images too.")
@_json_option
def check(path: Path, images: bool, json_path: str | None) -> int:
    """Every fault by stripe, block and sample."""
    from demitasse_striped_io.checking import check_set

    start = time.perf_counter()
    found = check_set(path, images=images, progress=Progress(["checked"]))
    seconds = time.perf_counter() - start
    record = {
        "samples": found.samples,
        "bytes": found.bytes,
        "seconds": seconds,
        "faults": [dict(vars(fault)) for fault in found.faults],
        "notes": list(found.notes),
    }
    rate = f"{human(found.bytes / seconds)}/s"
    lines = [str(fault) for fault in found.faults[:SHOWN]]
    if len(found.faults) > SHOWN:
        lines.append(f"and {len(found.faults) - SHOWN:,} more")
    lines += found.notes
    lines.append(
        f"{found.samples:,} samples, {human(found.bytes)} at {rate}: {_faults(len(found.faults))}"
    )
    _say(json_path, record, lines)
    return 1 if found.faults else 0


@command.command(
    "convert",
    epilog="Example: demitasse data convert list.txt train.set --stripes 4",
    short_help="Write samples as a striped set.",
    help="Write SOURCE as the striped set SET: an image list (.txt) or folder, tar shards "
    "('train-{000..099}.tar'), LMDB, IDX, CIFAR, HDF5, or whatever else a plugin reads. To resume an "
    "interrupted conversion, run it again.",
)
@click.argument("source")
@click.argument("target", metavar="SET", type=click.Path(path_type=Path))
@click.option("--stripes", default=STRIPES, show_default=True, help="The number of files.")
@click.option(
    "--block",
    type=Bytes(),
    default=BLOCK,
    show_default="256M",
    help="The size of a block in bytes, such as 4M.",
)
@click.option(
    "--run",
    default=RUN,
    show_default=True,
    help="The samples of a run in block order; readers may choose another number.",
)
@click.option(
    "--order", type=click.Choice(ORDERS), help="The order of reading; readers may choose another one."
)
@click.option(
    "--folder",
    "folders",
    multiple=True,
    help="A folder for stripes, used in turn; may be repeated. Default: SET.",
)
@click.option("--kind", help="The format of SOURCE, where it cannot be told.")
@click.option("--root", default="", help="A prefix of the paths in a list.")
@click.option("--raw", is_flag=True, help="Decode images now instead of when they are read.")
@click.option("--height", default=0, help="Resize images to so many rows.")
@click.option("--width", default=0, help="Resize images to so many columns.")
@click.option("--gray", is_flag=True, help="Keep one channel only.")
@click.option("--threads", default=0, help="Threads that read, decode and write; default: one per core.")
@click.option("--striping-factor", default=0, help="Targets of each stripe's file (Lustre, MPI-IO).")
@click.option("--striping-unit", type=Bytes(), default=0, help="The bytes of a block on each target.")
@click.option("--mpi", is_flag=True, help="Create the stripes through MPI-IO, with those hints.")
@click.option("--verify/--no-verify", default=True, help="Read everything again and compare.")
@click.option("--force", is_flag=True, help="Replace an existing set, once the new one is complete.")
@_json_option
def convert(source: str, target: Path, order: str | None, json_path: str | None, **options: Any) -> None:
    """Compose, convert, say what was written. Raises DataError where a launcher has started several."""
    from demitasse import DataError, compose

    if (found := launched()) is not None and (started := found.size or 1) > 1:
        # The others would end because the set is being written, and MPI would wait for them forever.
        raise DataError(
            f"{target}: one process writes a set, with as many threads as you give (--threads), but "
            f"{started} were started; leave mpiexec out, or start one (srun -n 1)"
        )
    check_writable({"SET": None if target.is_dir() else target})
    progress = Progress(["written", "verified"])
    start = time.perf_counter()
    with compose() as runtime:
        done = runtime.program(
            "convert_to_striped", source, target, order=order or "", progress=progress, **options
        )
    record = {"source": source, "target": str(target), "seconds": time.perf_counter() - start, **done}
    went_on = f", {done['resumed']:,} of them before" if done["resumed"] else ""
    seen = ", verified" if done["verified"] else ""
    line = (
        f"wrote {target}: {done['samples']:,} samples{went_on}, {human(done['bytes'])}, {done['form']}, "
        f"on {done['stripes']} stripes{seen}, in {record['seconds']:.1f} s"
    )
    bad = done["damaged"]
    lines = [f"{where}: {what}" for where, what in list(bad.items())[:SHOWN]]
    lines += [f"and {len(bad) - SHOWN:,} more"] if len(bad) > SHOWN else []
    count = f"{len(bad):,} image{' was' if len(bad) == 1 else 's were'}"
    warning = f"{count} kept that cannot be read: a run stops there, or uses others with on_error=skip"
    _say(json_path, record, [*lines, *[warning] * bool(bad), line])


@command.command(
    "measure",
    epilog="Example: demitasse data measure train.set --workers 2",
    short_help="Measure how fast mini-batches are delivered.",
    help="Deliver mini-batches of SOURCE (a striped set, or anything a plugin reads) to workers for "
    "some seconds, and show the rate and what each stripe contributes.",
)
@click.argument("source")
@click.option(
    "--batch",
    default=256,
    type=click.IntRange(1, (1 << 31) - 1),
    show_default=True,
    help="The samples of a mini-batch, of all workers together.",
)
@click.option("--workers", default=1, show_default=True, help="The workers that share it.")
@click.option("--seconds", default=2.0, show_default=True, help="How long to measure.")
@click.option("--shuffle/--no-shuffle", default=True, help="Use a shuffled order, or the file's.")
@click.option(
    "--readers", is_flag=True, help="Compare one reader that distributes with a reader for each worker."
)
@click.option("--kind", help="The format of SOURCE, where it cannot be told.")
@click.option("--height", default=0, help="Resize images of a list to so many rows.")
@click.option("--width", default=0, help="Resize images of a list to so many columns.")
@_json_option
def measure(
    source: str,
    batch: int,
    workers: int,
    seconds: float,
    shuffle: bool,
    readers: bool,
    kind: str | None,
    height: int,
    width: int,
    json_path: str | None,
) -> None:
    """Options of a set follow its path: ``set?order=block&io=direct``."""
    from demitasse import DataError, DataSpec, compose
    from demitasse_striped_io.measuring import deliver, slow_stripes
    from demitasse_striped_io.readers import READERS, with_readers

    if workers < 1 or batch < workers:
        raise DataError(
            f"a batch of {batch} sample{'s' * (batch != 1)} for {workers} worker{'s' * (workers != 1)}; "
            f"each needs one or more"
        )
    if not 0 <= seconds < math.inf:
        raise DataError(f"--seconds {seconds:g} (valid: 0 or more)")
    sizes = {"height": height, "width": width} if height or width else {}
    results, slow = [], dict[int, tuple[float, float]]()
    with compose() as runtime:
        for reader in READERS if readers else ("own",):
            opened = with_readers(runtime.open_source(DataSpec(source, kind, shuffle, 0, sizes)), reader)
            found = deliver(opened, batch, workers, seconds)
            store = getattr(opened, "store", None)
            if store is not None:
                slow |= slow_stripes(store.tally)
            results.append((reader, found))
            opened.close()
    record = {
        "source": source,
        "batch": batch,
        "results": [
            {"readers": reader, **vars(m), "samples_per_second": m.rate, "bytes_per_second": m.bandwidth}
            for reader, m in results
        ],
        "slow_stripes": {str(k): {"bytes_per_second": a, "others": b} for k, (a, b) in slow.items()},
    }
    rows = [
        (reader, m.workers, f"{m.rate:,.0f}", f"{human(m.bandwidth)}/s", f"{m.waited:.0%}")
        for reader, m in results
    ]
    lines = [table(("readers", "workers", "samples/s", "delivered", "time in reading"), rows)]
    lines += [
        f"stripe {k} is slow: {human(a)}/s, the others' median is {human(b)}/s"
        for k, (a, b) in slow.items()
    ]
    _say(json_path, record, lines)


@command.command(
    "predict",
    epilog="Example: demitasse data predict taihulight --processes 64",
    short_help="Predict the bandwidth of shared storage.",
    help="Predict the bandwidth that processes of the described MACHINE (a file, or a name that "
    "'demitasse machines' lists) get from its storage: for a file on one target, and one on stripes.",
)
@click.argument("machine", type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--bytes",
    "size",
    type=Bytes(),
    default=192 << 20,
    show_default="192M",
    help="The bytes that a process reads per step: 256 samples of 3 x 256 x 256 float32 are 192M.",
)
@click.option("--stripes", type=click.IntRange(min=1), help="Default: 32, or as many as there are.")
@click.option("--block", type=Bytes(), default=BLOCK, show_default="256M", help="The size of a block.")
@click.option(
    "--sampling",
    type=click.Choice(["random", "block"]),
    default="random",
    show_default=True,
    help="Whether each process begins at a random place, or all read in block order.",
)
@click.option(
    "--processes",
    "counts",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1, 4, 16, 64, 256, 1024),
    show_default="1, 4, 16, 64, 256, 1024",
    help="The number of processes that share the storage; may be repeated.",
)
@_json_option
def predict(
    machine: Path,
    size: int,
    stripes: int | None,
    block: int,
    sampling: str,
    counts: tuple[int, ...],
    json_path: str | None,
) -> None:
    """Nothing is read: the numbers are the description's."""
    from demitasse import load_machine
    from demitasse_striped_io.contention import reading_cost

    described = load_machine(machine)
    record, rows = [], []
    for count in counts:
        one, many = (
            reading_cost(
                described, processes=count, batch=size, stripes=s, block=block, sampling=sampling
            )
            for s in (1, stripes)
        )
        record.append({"processes": count, "single": one.to_dict(), "striped": many.to_dict()})
        split = (f"{human(one.aggregate)}/s", f"{human(one.each)}/s", f"{one.seconds:.2f} s")
        striped = (f"{human(many.aggregate)}/s", f"{human(many.each)}/s", f"{many.seconds:.2f} s")
        rows.append((f"{count:,}", *split, *striped, f"{many.readers:.0f}", f"{many.bound:,}"))
    head = ("processes", "one target", "each", "a step", f"{many.stripes} stripes", "each", "a step")
    lines = [
        f"{described.name}: {many.targets} {many.space!r} of {human(many.bandwidth)}/s; each process "
        f"reads {human(size)} a step, {sampling} (simulated)",
        table((*head, "on one", "N / S x blocks"), rows),
    ]
    _say(json_path, {"machine": described.name, "sizes": record}, lines)
