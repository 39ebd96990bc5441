"""Reading a snapshot: nothing is trusted until the checksum of the whole file has been verified."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack

from demitasse import ModelError, NetDefinition, SnapshotError, Solver, Weights, looks_like
from demitasse_snapshots.body import Body, checksum, entries
from demitasse_snapshots.layout import DIGEST, HEADER, MAGIC, VERSION, Header

COPIED = b"\x89DMT"
"""The first bytes of a snapshot that was copied as text."""


class SnapshotReader:
    """An opened snapshot file. Implements ``demitasse.ModelReader``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header = self._header()

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> NetDefinition:
        """Raise ModelError: a snapshot contains no net."""
        raise self._lacking("net")

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Solver:
        """Raise ModelError: a snapshot contains no solver."""
        raise self._lacking("solver")

    def weights(self) -> Weights:
        """Return parameters, iteration, solver state and record, as they were written.

        Raises SnapshotError if the file is damaged, which names the damaged array if possible.
        """
        return Body(self.path, self._body()).weights()

    def _lacking(self, what: str) -> ModelError:
        return ModelError(
            f"{self.path} is a snapshot: it has weights and solver state, but no {what}; "
            f"give the {what}'s own file, and this one as weights or to resume from"
        )

    def _header(self) -> Header:
        try:
            with self.path.open("rb") as file:
                start, more = file.read(HEADER.size), file.read(HEADER.size)
                size = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise SnapshotError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(start) < len(MAGIC) and MAGIC.startswith(start) and start:
            raise SnapshotError(f"{self.path} is cut off: it has {len(start)} bytes")
        if not start.startswith(MAGIC):
            raise SnapshotError(f"{self.path} is not a Demitasse snapshot; it {_told(start + more)}")
        if len(start) < HEADER.size:
            raise SnapshotError(
                f"{self.path} is cut off in its header: it has {len(start)} bytes of {HEADER.size}"
            )
        _, version, length, checksum = HEADER.unpack(start)
        if zlib.crc32(start[:-4]) != checksum:
            raise SnapshotError(f"{self.path} is damaged: its header does not match its checksum")
        if version != VERSION:
            raise SnapshotError(
                f"{self.path} has format version {version}; this demitasse-snapshots reads version "
                f"{VERSION}" + ("; install a newer one" if version > VERSION else "")
            )
        expected = HEADER.size + length + DIGEST
        if size != expected:
            raise SnapshotError(
                f"{self.path} {'is cut off' if size < expected else 'has bytes after its end'}: "
                f"its header says {expected:,} bytes, but it has {size:,}"
            )
        return Header(version, length)

    def _body(self) -> Any:
        """Return the unpacked body, in which arrays are still mappings."""
        expected = HEADER.size + self.header.length + DIGEST
        try:
            content = memoryview(self.path.read_bytes())
        except OSError as error:
            raise SnapshotError(f"{self.path} cannot be read: {error.strerror}") from error
        if len(content) != expected or content[: HEADER.size] != self.header.pack():
            raise SnapshotError(f"{self.path} was changed while it was read")
        body = content[HEADER.size : -DIGEST]
        if hashlib.sha256(content[:-DIGEST]).digest() != content[-DIGEST:]:
            raise SnapshotError(
                f"{self.path} is damaged: {_damaged_part(body)} does not match its checksum; "
                f"use another snapshot"
            )
        try:
            return _unpacked(body)
        except ValueError as error:
            raise SnapshotError(f"{self.path}: its body is not a snapshot's: {error}") from error


def _unpacked(body: memoryview) -> Any:
    """Unpack msgpack, with every length limited by the bytes that exist. Raises ValueError."""
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            use_list=True,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            max_str_len=len(body),
            max_bin_len=len(body),
            max_array_len=len(body),
            max_map_len=len(body),
            max_ext_len=0,
        )
    except (TypeError, OverflowError) as error:
        raise ValueError(str(error)) from error  # such as a list as a key


def _damaged_part(body: memoryview) -> str:
    """Name the array whose own checksum is wrong, or else everything that may be damaged."""
    try:
        tree = _unpacked(body)
        for where, entry in entries(tree):
            if checksum(entry["data"]) != entry["crc32"]:
                return where
    except (ValueError, TypeError, KeyError, AttributeError):
        # The structure itself is damaged, and may unpack to anything.
        return "its structure"
    return "its structure, record or checksum"


def _told(start: bytes) -> str:
    if start.startswith(COPIED):
        return "looks like a snapshot that was copied as text"
    if start.startswith(b"\x0a") and not start.isascii():
        return "looks like a binary Caffe model"
    return looks_like(start)
