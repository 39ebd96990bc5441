"""A solver's update and learning rate that no file format has: Lion, with a cosine after a warm-up.

The update is an operation on flat memory with a kernel; both belong to a plugin that is an object. The
rate is a function of the iteration. Both are set in the record that reading a solver file returns.

Source: X. Chen et al., *Symbolic Discovery of Optimization Algorithms* (2023), algorithm 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import demitasse
from demitasse import Candidate, Request, Work, hookimpl
from demitasse.operations import REQUIRED, Operation, define, nothing

SOLVER = Path(__file__).parents[1] / "digits" / "digits_solver.prototxt"

LION = define(
    "update",
    "lion_update",
    "c = beta1 * history + (1 - beta1) * scale * gradient; parameter -= rate * (sign(c) + decay * "
    "parameter); history = beta2 * history + (1 - beta2) * scale * gradient; rate and decay times each "
    "segment's multipliers; an absent scale is 1",
    inputs="parameter! gradient history! rate scale?:float64",
    outputs="",
    shapes=nothing,
    attributes={"beta1": 0.9, "beta2": 0.99, "decay": 0.0, "segments": REQUIRED},
)


def bind_lion(attributes: Mapping[str, Any], operands: Sequence[Any], workspace: Any) -> Work:
    """Bind the update of a stretch of flat memory; ``workspace`` has room for two such stretches."""
    parameter, gradient, history, rate, scale = operands
    scaled, step = workspace.view(parameter.dtype).reshape(2, parameter.size)
    beta1, beta2 = attributes["beta1"], attributes["beta2"]

    def work() -> None:
        np.multiply(gradient, 1.0 if scale is None else scale[0], out=scaled)
        np.subtract(history, scaled, out=step)
        np.multiply(step, beta1, out=step)
        np.add(step, scaled, out=step)
        np.sign(step, out=step)
        for start, stop, rate_times, decay_times in attributes["segments"]:
            part = slice(start, stop)
            parameter[part] *= 1.0 - rate[0] * rate_times * attributes["decay"] * decay_times
            step[part] *= rate[0] * rate_times
        np.subtract(parameter, step, out=parameter)
        np.subtract(history, scaled, out=history)
        np.multiply(history, beta2, out=history)
        np.add(history, scaled, out=history)

    return work


class Lion:
    """The plugin; in a package, its methods would be functions in plugin.py."""

    manifest: Mapping[str, Any] = {
        "name": "lion",
        "api": ">=0.1,<0.2",
        "roles": {"operations": {}, "kernels": {"spaces": ["host"]}},
    }

    @staticmethod
    @hookimpl
    def operations() -> Iterable[Operation]:
        return (LION,)

    @staticmethod
    @hookimpl
    def kernels(request: Request) -> Iterable[Candidate]:
        if request.operation.name != "lion_update" or request.inputs[0] is None:
            return []

        def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
            return bind_lion(request.attributes, inputs, workspace)

        return [Candidate("NumPy", bind, workspace=2 * request.inputs[0].nbytes)]


@dataclass(frozen=True)
class Cosine:
    """A rate that rises to ``highest`` over ``warm_up`` iterations, and then falls to 0 along a cosine
    until iteration ``last``."""

    highest: float
    warm_up: int
    last: int

    def __call__(self, iteration: int) -> float:
        if iteration < self.warm_up:
            return self.highest * (iteration + 1) / self.warm_up
        gone = min(1.0, (iteration - self.warm_up) / (self.last - self.warm_up))
        return self.highest * 0.5 * (1.0 + math.cos(math.pi * gone))


def main() -> None:
    with demitasse.compose(plugins=["+cpu", Lion]) as runtime:
        caffes = runtime.read(SOLVER).solver({"max_iter": 300, "snapshot_after_train": "false"})
        solver = replace(
            caffes,
            update="lion_update",
            update_attributes={"decay": 0.01},
            rate=Cosine(0.002, warm_up=30, last=caffes.max_iterations),
        )
        trainer = runtime.trainer(solver)
        result = trainer.run()
        print(f"iteration {result.iteration}: accuracy {trainer.test()['accuracy']:.3f}")


if __name__ == "__main__":
    main()
