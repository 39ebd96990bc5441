"""Flow files in Middlebury's format: the letters PIEH, the width and the height as 32-bit integers, then
for each pixel, row by row, its movement across and down as 32-bit floats, all little-endian.

Baker et al. 2011, *A Database and Evaluation Methodology for Optical Flow*; its website describes the
format.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DataError, Work, is_file, is_there, looks_like, replacing

TAG = b"PIEH"
"""The 32-bit float 202021.25, by which readers recognise the format and the byte order."""


LARGEST = 1e9
"""A flow with a component larger than this is unknown."""


def read_flow(path: Path) -> np.ndarray:
    """Return the flow of a file, 2 x rows x columns, float32, with NaN where it is unknown. Raise
    DataError if the file cannot be read, is of another kind, or is truncated."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if data[:4] != TAG:
        raise DataError(
            f"{path}: is not a .flo file, which begins with PIEH; it {looks_like(data[:4096])}"
        )
    width, height = struct.unpack("<ii", data[4:12]) if len(data) >= 12 else (0, 0)
    if min(width, height) < 1 or len(data) != 12 + 8 * width * height:
        raise DataError(
            f"{path}: has {len(data):,} bytes, but {width} x {height} pixels take "
            f"{12 + 8 * width * height:,}: it is damaged or cut off"
        )
    flow = np.moveaxis(np.frombuffer(data, "<f4", offset=12).reshape(height, width, 2), 2, 0)
    known = np.abs(flow) <= LARGEST
    return np.where(known, flow, np.float32(np.nan))


def write_flow(path: Path, flow: Any) -> None:
    """Write a flow, 2 x rows x columns, atomically. Raise DataError with the system's reason, or if the
    file exists and is of another kind, so that a net from elsewhere cannot overwrite it."""
    try:
        if is_there(path) and not (is_file(path) and path.read_bytes()[:4] in (b"", TAG)):
            raise DataError(
                f"{path}: exists and is not a .flo file; FLOWriter overwrites .flo files only"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary, Path(temporary).open("wb") as file:
            file.write(TAG + struct.pack("<ii", flow.shape[2], flow.shape[1]))
            file.write(np.ascontiguousarray(np.moveaxis(np.asarray(flow), 0, 2), "<f4").tobytes())
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from error


def writing(about: Mapping[str, Any]) -> Callable[[Sequence[Any]], Work]:
    """Return the kernel of write_flows, which binds to its inputs."""

    def bind(inputs: Sequence[Any]) -> Work:
        flows, sample = inputs

        def work() -> None:
            given = np.asarray(flows)
            first = int(np.asarray(sample)[0])
            for n, flow in enumerate(given):
                write_flow(Path(named(about, first, n, len(given))), flow)

        return work

    return bind


def named(about: Mapping[str, Any], first: int, n: int, count: int) -> str:
    """Return the file name of flow ``n`` of ``count``; ``first`` is the number of the
    first flow's sample."""
    if about["file"]:
        return str(about["file"])
    pass_number, within = divmod(first + n, about["batch"])
    which = f"({within:03d})" if about["batch"] > 1 else ""
    name = f"{about['prefix']}{pass_number:07d}{which}{about['suffix']}.flo"
    return f"{about['folder']}/{name}" if about["folder"] else name
