"""The program ``convert_to_striped``: writes samples of any format as a striped set, and verifies it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from demitasse import DataError
from demitasse_striped_io.index import BLOCK, RUN, STRIPES
from demitasse_striped_io.inputs import Form, open_input
from demitasse_striped_io.parallel_fs import Striping
from demitasse_striped_io.writer import Making, Writer


def convert_to_striped(
    runtime: Any,
    source: str | Path,
    target: str | Path,
    *,
    root: str = "",
    kind: str | None = None,
    raw: bool = False,
    height: int = 0,
    width: int = 0,
    gray: bool = False,
    stripes: int = STRIPES,
    block: int = BLOCK,
    run: int = RUN,
    order: str = "",
    folders: Sequence[str | Path] = (),
    threads: int = 0,
    striping_factor: int = 0,
    striping_unit: int = 0,
    mpi: bool = False,
    verify: bool = True,
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> dict[str, Any]:
    """Write the striped set ``target`` (a folder) and return what was done: ``samples``, ``resumed``
    (how many of them an earlier, interrupted conversion had written), ``form``, ``bytes``, ``stripes``,
    ``verified``, and ``damaged`` (by position, what is wrong with image files that were stored as they
    are and lack an image's header or end; training stops there, or skips them).

    ``source`` is an image list or folder, tar shards (``train-{000..099}.tar``), or anything that a
    composed plugin reads (LMDB, IDX, CIFAR, HDF5). Images are stored as files, to be resized to
    ``height`` and ``width`` when read, unless ``raw``, with which they are decoded now. ``folders`` get
    the stripes in turn. ``run`` and ``order`` are the set's defaults for reading. ``progress`` is called
    with the samples done and all samples: first while writing and then, with ``verify``, while reading
    again. Raises DataError; what was written is kept, and the same call continues from there.
    """
    if bool(height) != bool(width) or min(height, width) < 0:
        raise DataError(f"give both a height and a width to resize images, not ({height}, {width})")
    resized = (height, width) if height else None
    form = Form(encoded=not raw, gray=gray, resized=resized)
    opened = open_input(runtime, str(source), root=root, kind=kind, form=form)
    try:
        decoding: dict[str, Any] = {"order": order} if order else {}
        if opened.form == "encoded":
            decoding |= {"height": height, "width": width} if resized else {}
            decoding |= {"mode": "gray"} if gray else {}
        making = Making(
            stripes,
            block,
            run,
            tuple(map(Path, folders)),
            threads,
            decoding,
            Striping(striping_factor, striping_unit, mpi),
        )
        writer = Writer(Path(target), opened, making, force)
        index = writer.write(progress)
    finally:
        opened.close()
    if verify:
        from demitasse_striped_io.checking import check_set

        found = check_set(Path(target), progress=progress)
        if found.faults:
            raise DataError(f"{target}: what was written differs from what was read: {found.faults[0]}")
    return {
        "samples": index.samples,
        "resumed": writer.resumed,
        "form": index.form,
        "bytes": sum(index.lengths),
        "stripes": len(index.stripes),
        "verified": verify,
        "damaged": dict(opened.damaged),
    }
