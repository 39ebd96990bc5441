"""The 1,797 scanned digits that come with scikit-learn: 8 x 8 pixels with values from 0 to 16.

E. Alpaydin and C. Kaynak, Optical Recognition of Handwritten Digits, UCI repository: its test part.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
from pathlib import Path

import numpy as np

from demitasse import DataError, permutation, unknown
from demitasse_datasets.samples import ArraySamples, decoded_once

COUNT = 1797
HELD_OUT_SEED = 0
SPLITS = ("train", "test")


def open_digits(split: str | None) -> ArraySamples:
    """Return all digits, or the ``train`` or ``test`` part: ``data`` (1, 8, 8) and ``label``, uint8."""
    if split is not None and split not in SPLITS:
        raise DataError(unknown("part of the digits", split, SPLITS))
    name = "digits" if split is None else f"digits:{split}"

    def decode() -> ArraySamples:
        table = _table()
        rows = np.arange(COUNT) if split is None else part(split)
        return ArraySamples(
            name, {"data": table[rows, :64].reshape(-1, 1, 8, 8), "label": table[rows, 64].copy()}
        )

    return decoded_once(name, decode)


def part(split: str) -> np.ndarray:
    """Return the numbers of the digits in a part, ascending. The held-out test part is a fifth (359
    digits): the beginning of a permutation with a fixed seed, so that it is the same everywhere."""
    order = permutation(HELD_OUT_SEED, 0, COUNT)
    return np.sort(order[: COUNT // 5] if split == "test" else order[COUNT // 5 :])


def _table() -> np.ndarray:
    """Return (1797, 65) uint8: 64 pixels and the label. Reads scikit-learn's file without importing
    scikit-learn, which would take 0.8 s."""
    try:
        folder = importlib.metadata.distribution("scikit-learn").locate_file("sklearn/datasets/data")
        text = gzip.decompress(Path(str(folder), "digits.csv.gz").read_bytes())
        table = np.loadtxt(io.BytesIO(text), np.uint8, delimiter=",")
        if table.shape == (COUNT, 65):
            return table
    except (importlib.metadata.PackageNotFoundError, OSError, EOFError, ValueError):
        pass  # Another version may keep it elsewhere; then scikit-learn itself finds it.
    return _loaded()


def _loaded() -> np.ndarray:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            f"the digits come with scikit-learn, which cannot be imported ({error}); "
            f"pip install scikit-learn"
        ) from error
    pixels, labels = load_digits(return_X_y=True)
    return np.column_stack([pixels, labels]).astype(np.uint8)
