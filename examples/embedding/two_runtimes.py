"""Demitasse inside another program: two runtimes of different machines in one process.

One trains on the program's own arrays with a single worker; the other trains the same net with two
thread workers whose gradients are summed. Nothing is global, so both exist side by side. Sample order
and random numbers do not depend on the number of workers, so the results agree to rounding.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import demitasse

HERE = Path(__file__).parent


def two_moons(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return points on two interleaved half circles with some noise, and the half circle of each."""
    random = np.random.default_rng(seed)
    label = random.integers(0, 2, count)
    angle = random.uniform(0, np.pi, count)
    x = np.where(label == 0, np.cos(angle), 1 - np.cos(angle))
    y = np.where(label == 0, np.sin(angle), 0.5 - np.sin(angle))
    points = np.stack([x, y], axis=1) + random.normal(0, 0.1, (count, 2))
    return {"data": points.astype(np.float32), "label": label}


def main() -> None:
    one = demitasse.Machine("one worker", (demitasse.Level("desk", cores=1),))
    two = demitasse.Machine(
        "two workers",
        (
            demitasse.Level(
                "desk",
                count=2,
                cores=1,
                workers="threads",
                sync=demitasse.SyncSpec("reference"),
            ),
        ),
    )
    data = {"train": two_moons(4000, seed=1), "test": two_moons(1000, seed=2)}
    plugins = ["caffe", "datasets", "reference", "training"]
    solver = HERE / "moons_solver.prototxt"
    with (
        demitasse.compose(one, plugins) as first,
        demitasse.compose(two, plugins) as second,
        first.trainer(solver, data=data, precision="f64") as alone,
        second.trainer(solver, data=data, precision="f64") as together,
    ):
        for _ in range(4):
            a, b = alone.step(100), together.step(100)
            print(f"iteration {a.iteration}: loss {a.loss:.6f} alone, {b.loss:.6f} together")
        difference = max(
            float(np.abs(mine - theirs).max())
            for layer, arrays in alone.net.params.items()
            for mine, theirs in zip(arrays, together.net.params[layer], strict=True)
        )
        print(
            f"accuracy {alone.test()['accuracy']:.3f}; largest difference of a weight {difference:.1e}"
        )


if __name__ == "__main__":
    main()
