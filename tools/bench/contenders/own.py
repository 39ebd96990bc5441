"""Demitasse itself, through its public interface."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import demitasse
from bench import prototxt
from bench.layers import Net

Arrays = dict[str, np.ndarray]


class Files:
    """A net's prototxts and weights in a folder, which is removed with the object."""

    def __init__(self, runtime: Any, net: Net, arrays: Arrays) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="demitasse-bench-")
        self.folder = Path(self._folder.name)
        self.solver = prototxt.write(net, self.folder)
        parameters: dict[str, list[np.ndarray]] = {}
        for layer in net.layers:
            mine = [arrays[f"{layer.name}.{number}"] for number in range(len(layer.parameters))]
            if layer.kind == "batch_norm":
                statistics = [arrays[f"{layer.name}.mean"], arrays[f"{layer.name}.variance"]]
                parameters[layer.name] = [*statistics, np.ones(1, np.float32)]
                if layer.numbers["scale"]:
                    parameters[layer.numbers["scale"]] = mine
            elif mine:
                parameters[layer.name] = mine
        weights = demitasse.Weights(parameters)
        self.weights = runtime.write(self.folder / "weights.caffemodel", weights)

    def close(self) -> None:
        self._folder.cleanup()


class Training:
    """A trainer for the net's solver."""

    def __init__(self, net: Net, precision: str, setting: str, arrays: Arrays) -> None:
        self.net, self.runtime = net, demitasse.compose()
        files = Files(self.runtime, net, arrays)
        samples = {"data": arrays["data"], "label": arrays["label"]}
        self.trainer = self.runtime.trainer(
            files.solver, weights=files.weights, data={"train": samples}, precision=precision
        )
        files.close()

    def run(self, steps: int) -> list[float]:
        """Return the loss of the last step, or of each step if run one by one."""
        return [float(self.trainer.step(steps).loss)]

    def parameters(self) -> Arrays:
        """Return all learned parameters, in Caffe's order."""
        found, params = Arrays(), self.trainer.net.params
        for layer in self.net.layers:
            name = layer.numbers["scale"] if layer.kind == "batch_norm" else layer.name
            for number, (_, shape) in enumerate(
                zip(params.get(name, ()), layer.parameters, strict=False)
            ):
                found[f"{layer.name}.{number}"] = np.array(params[name][number]).reshape(shape)
        return found


class Inference:
    """The deploy net, forward."""

    def __init__(self, net: Net, precision: str, setting: str, arrays: Arrays) -> None:
        self.runtime = demitasse.compose()
        files = Files(self.runtime, net, arrays)
        deploy = files.folder / "deploy.prototxt"
        self.net = self.runtime.net(deploy, weights=files.weights, precision=precision)
        self.data = arrays["data"]
        files.close()

    def run(self, steps: int) -> list[float]:
        """Return the sum of the first class's probabilities in the last pass."""
        for _ in range(steps):
            output = self.net.forward(data=self.data)
        return [float(output["prob"][:, 0].sum())]

    def output(self) -> np.ndarray:
        """Return the probabilities."""
        found = np.asarray(self.net.forward(data=self.data)["prob"])
        return found.reshape(len(found), -1)


def prepare(threads: int) -> None:
    """Do nothing: a composition uses the available cores."""


def matrix_product(precision: str, size: int = 2048) -> float:
    """Return GFLOP/s of NumPy's product of square f32 matrices, the best of several; 0 for bf16, which
    NumPy lacks."""
    if precision == "bf16":
        return 0.0
    a, b, c = (np.ones((size, size), np.float32) for _ in range(3))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        np.matmul(a, b, out=c)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9
