"""A runtime that only does arithmetic instead of training, and plugins installed for one test."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import demitasse
from demitasse import (
    PLAIN,
    Buffer,
    Candidate,
    Choice,
    Composition,
    Entry,
    Event,
    Manifest,
    ModelError,
    Processes,
    SnapshotError,
    TensorSpec,
    Weights,
)


def entry(layer: str, phase: str, flops: float = 2e6, in_place: bool = False) -> Entry:
    output = Buffer(layer, TensorSpec((2, 3), "float32", PLAIN), "arena", 0)
    return Entry(
        operation="convolution",
        layer=layer,
        phase=phase,
        plugin="arithmetic",
        kernel="direct",
        reason="preferred",
        inputs=(None,),
        outputs=(output,),
        workspace=None,
        in_place=in_place,
        flops=flops,
        bytes=1e6,
        candidate=Candidate("direct", lambda inputs, outputs, workspace: lambda: None),
    )


PROFILE = [
    (entry("conv1", "forward"), 0.002),
    (entry("relu1", "forward", in_place=True), 0.001),
    (entry("relu1", "backward"), 0.001),
    (entry("conv1", "backward"), 0.003),
    (entry("conv1", "backward"), 0.003),
]


def composition() -> Composition:
    roles = {"model_writer": {"suffixes": [".caffemodel", ".demitasse"]}}
    manifest = Manifest("arithmetic", "demitasse-arithmetic", "2.5", automatic=True, roles=roles)
    choice = Choice("kernels", "host", "arithmetic", "automatic, priority 50")
    return Composition("abacus", (manifest,), (choice,), (("torch", "only used when named"),))


class FakeTrainer:
    """Halves its loss each iteration; tests every second one and snapshots at the end."""

    def __init__(self, solver: Any, **options: Any) -> None:
        if getattr(solver, "train", None) == "net without loss":
            raise ModelError("deploy_net.prototxt: the net has no loss to train")
        last = int(options.get("overrides", {}).get("max_iter", 4))
        self.precision = options.get("precision") or "f32"
        self.net = SimpleNamespace(graph=SimpleNamespace(inputs={}))
        self.loaded: dict[str, Any] = {}
        prefix = str(solver.with_suffix("")) if isinstance(solver, Path) else "snapshot"
        self.solver = SimpleNamespace(
            max_iterations=last,
            display_interval=2,
            snapshot_prefix=prefix,
            snapshot_interval=0,
            snapshot_last=True,
            passes=1,
            rate=lambda iteration: 0.25,
        )
        self.iteration, self.batch, self.workers = 0, 32, 2
        self.stopped = False
        self.plan, self.processes, self.notes = None, Processes(), ["Ring: two ranks add"]
        self.listeners: list[Callable[[Event], None]] = []
        self.before_iteration: Callable[[int], None] = lambda iteration: None
        self.profiled = 0

    def tell(self, kind: str, **values: Any) -> None:
        for listener in self.listeners:
            listener(Event(kind, self.iteration, values))

    def run(
        self,
        stop: Callable[[], bool] | None = None,
        save: Callable[[], bool] | None = None,
        until: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> Any:
        loss = math.nan
        while self.iteration < self.solver.max_iterations:
            self.before_iteration(self.iteration)
            self.iteration += 1
            loss = 2.0**-self.iteration
            phases = {"read": 0.01, "forward": 0.03, "backward": 0.05, "synchronise": 0.01}
            self.tell(
                "iteration",
                loss=loss,
                smoothed=loss,
                rate=0.25,
                seconds=0.1,
                samples=self.batch,
                phases=phases,
            )
            if save is not None and save():
                self.tell("snapshot", path=Path("saved.demitasse"))
            if stop is not None and stop():
                break
            if self.iteration % 2 == 0:
                scores = {"accuracy": 0.5, "loss": loss}
                self.tell("test", scores=scores)
                if until is not None and until(scores):
                    break
        self.tell(
            "snapshot", path=Path(f"{self.solver.snapshot_prefix}_iter_{self.iteration}.demitasse")
        )
        return SimpleNamespace(iteration=self.iteration, loss=loss, seconds=0.4, phases={"read": 0.04})

    def check_snapshots(self) -> None:
        """Do nothing: a snapshot can be written."""

    def profile(self, iterations: int) -> list[tuple[Entry, float]]:
        self.profiled += iterations
        return PROFILE


class FakeReader:
    """A solver, a net, or weights, depending on the file's name."""

    def __init__(self, path: Path, written: Mapping[str, Weights]) -> None:
        self.path, self.written = path, written

    def solver(self, overrides: Mapping[str, Any] | None = None) -> Any:
        if "solver" not in self.path.name:
            raise ModelError(f"{self.path}:1: not a solver")
        prefix = str(self.path.parent / "snapshots" / "lenet")
        return SimpleNamespace(
            snapshot_prefix=prefix, tests=("a", "b"), test_iterations=(3, 5), train="net"
        )

    def net(self, phase: str, overrides: Mapping[str, Any] | None = None) -> Any:
        if "net" not in self.path.name:
            raise ModelError(f"{self.path}:7: not a net")
        return "net without loss" if "deploy" in self.path.name else "net"

    def weights(self) -> Weights:
        if self.path.is_file() and self.path.read_bytes() == b"damaged":
            raise SnapshotError(f"{self.path}: damaged")
        weights = self.written.get(str(self.path), Weights({}))
        if self.path.suffix == ".caffemodel":
            return Weights(weights.parameters)
        return weights


class FakeNet:
    def __init__(self, definition: Any, **options: Any) -> None:
        source = SimpleNamespace(size=1001)
        self.graph = SimpleNamespace(feeds=[SimpleNamespace(batch=100, source=source)])
        self.definition = definition
        self.loaded: dict[str, Any] = {}
        self.precision = options.get("precision") or "f32"
        self.loss_weights: dict[str, float] = {}

    def test(self, iterations: int, told: Any = None) -> dict[str, float]:
        return {"accuracy": 0.75, "loss": float(iterations)}

    def profile(self, iterations: int) -> list[tuple[Entry, float]]:
        return [row for row in PROFILE if row[0].phase == "forward"]


@dataclass(frozen=True)
class FakeMachine:
    levels: tuple[Any, ...] = ()
    name: str = "abacus"
    simulated: bool = False
    plugins: tuple[str, ...] | None = None

    def __str__(self) -> str:
        return f'name = "{self.name}"\n'


class FakeRuntime:
    """Replaces the runtime that ``demitasse.compose`` returns, and remembers how it was used."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.composition = composition()
        self.machine = FakeMachine()
        self.weights: dict[str, Weights] = {}
        self.made: Any = None
        self.prepare: Callable[[FakeTrainer], None] = lambda trainer: None
        self.closed = False
        self.processes = Processes()

    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def explain(self) -> Composition:
        return self.composition

    def read(self, path: str | Path) -> FakeReader:
        return FakeReader(Path(path), self.weights)

    def write(self, path: Path, weights: Weights) -> Path:
        self.weights[str(path)] = weights
        path.write_bytes(b"x" * 2048)
        return path

    def trainer(self, solver: Any, **options: Any) -> FakeTrainer:
        self.asked.update(options)
        trainer = self.made = FakeTrainer(solver, **options)
        self.prepare(trainer)
        return trainer

    def net(self, definition: Any, **options: Any) -> FakeNet:
        self.asked.update(options)
        return FakeNet(definition, **options)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRuntime:
    fake = FakeRuntime()

    def compose(**options: Any) -> FakeRuntime:
        fake.asked.update(options)
        return fake

    monkeypatch.setattr(demitasse, "compose", compose, raising=False)
    monkeypatch.chdir(tmp_path)
    return fake


Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a plugin for this test: a folder with its metadata, at the front of the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))

    def install(name: str, manifest: str, module: str) -> Path:
        package = site / f"stranger_{name}"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(module)
        (package / "plugin.toml").write_text(f'name = "{name}"\n{manifest}')
        metadata = site / f"stranger_{name}-1.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: stranger-{name}\nVersion: 1.5\n"
        )
        (metadata / "entry_points.txt").write_text(
            f"[demitasse.plugins]\n{name} = stranger_{name}.plugin\n"
        )
        return package

    return install
