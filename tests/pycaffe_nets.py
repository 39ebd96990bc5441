"""What scripts of pycaffe are tested with: a runtime that they run on, nets through files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import demitasse
import demitasse_caffe.pycaffe as caffe
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)

PLUGINS = ["caffe", "datasets", "cpu", "reference", "training", "snapshots"]
ON_REFERENCE = ["caffe", "datasets", "reference", "training", "snapshots"]
LAYERS = "layers_of_users"
"""The module with layers of type Python."""
RANDOM = {"type": "gaussian", "std": 0.5}

Make = Callable[..., caffe.Net]


@contextmanager
def scripts_run_with(plugins: Sequence[Any] | None) -> Iterator[demitasse.Runtime]:
    """Scripts run on a runtime of these plugins."""
    with demitasse.compose(plugins=plugins) as runtime:
        caffe.use(runtime)
        try:
            yield runtime
        finally:
            caffe.use(None)


def through_a_file(
    folder: Path, spec: Any, phase: int = caffe.TEST, *, force_backward: bool = False, **options: Any
) -> caffe.Net:
    """The net of a specification, written to a folder."""
    message = spec.to_proto()
    message.force_backward = force_backward
    path = folder / "net.prototxt"
    path.write_text(str(message))
    return caffe.Net(str(path), phase, **options)


def net_here(spec: Any, phase: int = caffe.TRAIN, **options: Any) -> caffe.Net:
    """The net of a specification, written to the working directory."""
    return through_a_file(Path(), spec, phase, **options)


def close(found: Any, expected: Any) -> bool:
    return bool(np.allclose(found, expected, rtol=1e-5, atol=1e-5))


def branching() -> caffe.NetSpec:
    """A hidden layer that is rectified in place and read by two layers whose results are added."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [4, 6]})
    n.hidden = L.InnerProduct(n.data, num_output=5, weight_filler=RANDOM, bias_filler=RANDOM)
    n.relu = L.ReLU(n.hidden, in_place=True)
    n.left = L.InnerProduct(n.relu, num_output=3, weight_filler=RANDOM)
    n.right = L.InnerProduct(n.relu, num_output=3, weight_filler=RANDOM)
    n.score = L.Eltwise(n.left, n.right)
    return n
