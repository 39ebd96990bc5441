"""Strings of two to five digits of MNIST, side by side and partly over each other: images of 28 x 140
pixels, and labels of five numbers, of which 10 stands where there is no digit.

    python make_samples.py FOLDER

reads MNIST's four files in FOLDER, and writes strings_train.h5 (20,000) and strings_test.h5 (2,000),
whose digits are those of MNIST's test, and a list of each for an HDF5Data layer.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import h5py
import numpy as np

import demitasse

WIDTH, LONGEST, BLANK = 140, 5, 10


def digits(folder: Path, split: str) -> dict[str, np.ndarray]:
    """MNIST's images (count, 28, 28) and labels, as the datasets plugin reads them."""
    with demitasse.compose() as runtime:
        source = runtime.open_source(demitasse.DataSpec(f"{folder}?split={split}"))
        read = {name: np.empty((source.size, *f.shape), f.dtype) for name, f in source.fields.items()}
        stream = source.stream(0, source.size, source.size)
        stream.read(read)
        stream.close()
        source.close()
    return {"data": read["data"][:, 0], "label": read["label"]}


def strings(given: dict[str, np.ndarray], count: int, seed: int) -> dict[str, np.ndarray]:
    """Images (count, 1, 28, WIDTH) from 0 to 1, and labels (count, LONGEST)."""
    random = np.random.default_rng(seed)
    data = np.zeros((count, 1, 28, WIDTH), np.float32)
    label = np.full((count, LONGEST), BLANK, np.float32)
    for image, row in zip(data[:, 0], label, strict=True):
        chosen = random.integers(0, len(given["data"]), random.integers(2, LONGEST + 1))
        apart = random.integers(20, 29)
        start = random.integers(0, WIDTH - apart * (len(chosen) - 1) - 28 + 1)
        for place, number in enumerate(chosen):
            part = image[:, start + place * apart :][:, :28]
            np.maximum(part, given["data"][number] / 255, out=part)
            row[place] = given["label"][number]
    return {"data": data, "label": label}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=20000, help="of strings to train with")
    asked = parser.parse_args()
    for split, count, seed in (("train", asked.count, 1), ("test", max(100, asked.count // 10), 2)):
        made = strings(digits(asked.folder, split), count, seed)
        with h5py.File(f"strings_{split}.h5", "w") as file:
            for name, values in made.items():
                file[name] = values
        Path(f"strings_{split}.txt").write_text(f"strings_{split}.h5\n")


if __name__ == "__main__":
    main()
