"""Checks of model files: what was written must be read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import ModelError, Weights, compose
from demitasse_conformance.machines import PLAINEST
from demitasse_conformance.nets import SEED
from demitasse_conformance.promises import hold


def check_weights(plugins: Sequence[Any], suffix: str) -> list[str]:
    """Check the writer and the reader of files with ``suffix`` against each other. As far as the format
    has them, the parameters in single precision, the iteration and the solver's state must be read back
    to the last bit, and a second file must replace the first. Return what the format has. Raises
    BrokenPromiseError."""
    with tempfile.TemporaryDirectory() as folder, compose(PLAINEST, plugins) as runtime:
        path = Path(folder, f"weights{suffix}")
        for number in (1, 2, 3):
            # A state may have to belong to the weights beside it; the last weights are rejected then.
            parameters = _rows(SEED + number // 3)
            written = Weights(parameters, 1000 * number, {"history": _rows(SEED + number)})
            try:
                runtime.write(path, written)
            except ModelError:
                if number < 3:
                    raise
                continue
            read = runtime.read(path).weights()
            has = []
            if read.parameters:
                _same(read.parameters, written.parameters, "parameter")
                has.append("parameters")
            if read.iteration is not None:
                hold(
                    read.iteration == written.iteration,
                    f"iteration {written.iteration} was written, but {read.iteration} is read",
                )
                has.append("iteration")
            for name, rows in read.state.items():
                hold(
                    name in written.state,
                    f"the state {name!r} is read, but was not written "
                    f"(written: {', '.join(written.state)})",
                )
                _same(rows, written.state[name], f"state {name!r}, array")
                has.append(f"state {name!r}")
            hold(has, "no parameters, iteration or state are read")
    return has


def _rows(seed: int) -> dict[str, list[np.ndarray]]:
    random = np.random.default_rng(seed)
    shapes: dict[str, list[tuple[int, ...]]] = {
        "conv1": [(4, 3, 2, 2), (4,)],
        "ip1": [(2, 5)],
        "scale": [(1,)],
    }
    return {
        layer: [random.standard_normal(shape).astype(np.float32) for shape in each]
        for layer, each in shapes.items()
    }


def _same(read: dict[str, list[np.ndarray]], written: dict[str, list[np.ndarray]], what: str) -> None:
    for layer, arrays in written.items():
        hold(layer in read, f"layer {layer!r} was written, but is not read (read: {', '.join(read)})")
        hold(
            len(read[layer]) == len(arrays),
            f"layer {layer!r}: {len(arrays)} arrays were written, but {len(read[layer])} are read",
        )
        for number, (ours, theirs) in enumerate(zip(read[layer], arrays, strict=True)):
            same = np.array_equal(np.asarray(ours), theirs)
            hold(same, f"{what} {number} of layer {layer!r} is not what was written")
