"""Findings about this machine: a decoder of images, MPI-IO, Lustre's tools, direct I/O."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from demitasse import DataError, Finding


def findings() -> Iterator[Finding]:
    """Yield a note for each optional component that is missing."""
    from demitasse_striped_io.decoding import opencv
    from demitasse_striped_io.parallel_fs import why_no_lustre, why_no_mpi

    subject = "striped_io"
    try:
        yield Finding("ok", subject, f"images are decoded by OpenCV {opencv().__version__}")
    except DataError as error:
        remedy = 'pip install "opencv-python-headless<5"'
        yield Finding("note", subject, f"encoded images cannot be read: {error}", remedy)
    reason = why_no_mpi()
    if reason is None:
        yield Finding("ok", subject, "io=mpi reads through MPI-IO")
    else:
        yield Finding("note", subject, f"io=mpi cannot be used: {reason}")
    lustre = why_no_lustre(Path.cwd())
    yield Finding("note", subject, lustre or "stripes written here are laid out by lfs setstripe")
    if not hasattr(os, "O_DIRECT"):
        yield Finding("note", subject, "io=direct cannot be used: this system has no O_DIRECT")
