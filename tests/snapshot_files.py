"""Snapshots for tests: what they have, that they are alike, and files that no writer of ours makes."""

from __future__ import annotations

import hashlib
import struct
import zlib

import numpy as np
import pytest

from demitasse import SnapshotError, Weights
from demitasse_snapshots.plugin import model_reader, model_writer


def write(path, weights):
    model_writer(path=path, weights=weights)


def read(path):
    return model_reader(path=path, layer_types={}).weights()


def failure(path):
    """What is told of a file that is no snapshot."""
    with pytest.raises(SnapshotError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def bits(value):
    """A value as nested tuples in which NaNs, signed zeros and types are told apart."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, float):
        return "float", struct.pack(">d", value)
    if isinstance(value, dict):
        return "dict", tuple((bits(key), bits(item)) for key, item in value.items())
    if isinstance(value, list):
        return "list", tuple(bits(item) for item in value)
    return type(value).__name__, value


def small():
    """Weights with a bit of everything."""
    return Weights(
        {"conv1": [np.arange(6, dtype="f4").reshape(1, 2, 3), np.array([-0.0, np.nan])], "ip": []},
        3,
        {"momentum": {"conv1": [np.array([[7]], "i8")]}},
        {"seed": 1, "net": "LeNet"},
    )


def sealed(body, version=1):
    """A file with right checksums around any body."""
    head = struct.pack("<8sIQ", b"\x89DMT\r\n\x1a\n", version, len(body))
    head += struct.pack("<I", zlib.crc32(head))
    return head + body + hashlib.sha256(head + body).digest()


def tree(**changes):
    """A body with one array of zeros, and changes to it."""
    entry = {"dtype": "<f4", "shape": [2], "crc32": 0, "data": bytes(8)} | changes.pop("entry", {})
    return {"parameters": {"a": [entry]}, "iteration": None, "state": {}, "record": {}} | changes
