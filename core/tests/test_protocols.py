"""Objects of plugins may be typed as narrowly as their author likes: a protocol's data are only read."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import demitasse
from demitasse_streams import EngineStream

SOURCES = Path(demitasse.__file__).parents[1]
EXAMPLE = """
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from demitasse import DataSource, DataSpec, Field, Graph, GraphBuilder, Layer, LayerType, Tensor
from demitasse import compose, hookimpl


class Reading:
    def __init__(self, first: int) -> None:
        self.cursor = first

    def read(self, out: Mapping[str, np.ndarray]) -> None: ...

    def close(self) -> None: ...


class Points:
    fields = {"data": Field((2,), "float32")}

    def __init__(self) -> None:
        self.size = 100

    def stream(self, first: int, count: int, step: int) -> Reading:
        return Reading(first)

    def close(self) -> None: ...


@dataclass(frozen=True)
class Swish:
    name = "Swish"
    parameters = {"beta": 1.0}

    def build(self, layer: Layer, bottoms: Sequence[Tensor], graph: GraphBuilder) -> list[Tensor]:
        return [graph.apply("relu", bottoms[0])]


class Mine:
    manifest = {"name": "mine", "api": ">=0.1,<0.2", "roles": {"data_source": {}, "layer_types": {}}}

    @staticmethod
    @hookimpl
    def data_source(spec: DataSpec) -> DataSource | None:
        return Points()

    @staticmethod
    @hookimpl
    def layer_types() -> list[LayerType]:
        return [Swish()]


with compose(plugins=["+cpu", Mine]) as runtime:
    trainer = runtime.trainer("solver.prototxt", weights=["w.caffemodel"], overrides={"base_lr": 0.1})
    loss: float = trainer.run(stop=lambda: True, until=lambda scores: scores["accuracy"] > 0.9).loss
    graph: Graph = runtime.net("deploy.prototxt").graph
"""


@pytest.mark.parametrize(
    "protocol",
    [
        demitasse.DataSource,
        demitasse.Stream,
        demitasse.LayerType,
        demitasse.StreamEngine,
        EngineStream,
    ],
    ids=lambda protocol: str(protocol.__name__),
)
def test_data_of_a_protocol_are_properties(protocol: type) -> None:
    """A type checker rejects a ``dict[str, Field]`` for an attribute ``fields: Mapping[str, Field]``, as
    others could set it."""
    assert not getattr(protocol, "__annotations__", {})


@pytest.mark.parametrize("kind", [demitasse.TrainerOptions, demitasse.NetOptions])
def test_each_keyword_is_explained(kind: Any) -> None:
    assert [name for name in kind.__annotations__ if f"- ``{name}``: " not in kind.__doc__] == []


@pytest.mark.parametrize(
    "protocol",
    [demitasse.Trainer, demitasse.Net, demitasse.TrainedNet, demitasse.Blob, demitasse.Result],
    ids=lambda protocol: str(protocol.__name__),
)
def test_help_explains_all_that_a_runtimes_programs_have(protocol: type) -> None:
    assert not getattr(protocol, "__annotations__", {}), "which help() shows without a word"
    members = {name: member for name, member in vars(protocol).items() if name[0] != "_"}
    assert [name for name, member in members.items() if not member.__doc__] == []


@pytest.mark.slow
def test_a_type_checker_accepts_what_an_author_writes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    path = tmp_path / "mine.py"
    path.write_text(EXAMPLE)
    options = "--strict", "--config-file", "", "--follow-imports", "silent"
    command = [sys.executable, "-m", "mypy", *options, str(path)]
    found = {"MYPYPATH": str(SOURCES), "MYPY_CACHE_DIR": str(tmp_path / "cache"), "PATH": ""}
    done = subprocess.run(command, env=found, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_whoever_inherits_a_protocol_may_assign_its_data() -> None:
    @dataclasses.dataclass
    class Points(demitasse.DataSource):
        fields: dict[str, demitasse.Field]
        size: int = 3

    class Reading(demitasse.Stream):
        def __init__(self) -> None:
            self.cursor = 1

    class Swish(demitasse.LayerType):
        name, parameters = "Swish", {"beta": 1.0}

    class Quick(EngineStream):
        def __init__(self) -> None:
            self.name = "quick"

    assert Points({}).size == 3
    assert (Reading().cursor, Quick().name, Swish().name) == (1, "quick", "Swish")
