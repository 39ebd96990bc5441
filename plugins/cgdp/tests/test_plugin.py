"""The plugin is found, its manifest is true, and errors name what is wrong in a description."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from demitasse import CompositionError, DescriptionError, Group, Level, Machine, SyncSpec, Team
from demitasse_cgdp.gradient_sync import host_threads
from demitasse_cgdp.model import rates
from demitasse_cgdp.options import NAMES, Options

README = Path(__file__).parents[1] / "README.md"

Train = Callable[..., Any]


def plugin() -> Any:
    (entry,) = entry_points(group="demitasse.plugins", name="cgdp")
    return entry.load()


def test_manifest_declares_the_hooks_that_are_implemented() -> None:
    manifest = tomllib.loads(files("demitasse_cgdp").joinpath("plugin.toml").read_text("utf-8"))
    implemented = {
        name
        for name, member in inspect.getmembers(plugin(), inspect.isfunction)
        if hasattr(member, "demitasse_impl")
    }
    assert manifest["name"] == "cgdp"
    assert not manifest["automatic"]
    assert set(manifest["roles"]) == implemented


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": 3}, "unknown option 'chunks'; did you mean 'chunk'"),
        ({"scheme": "typcal"}, "unknown scheme 'typcal'; did you mean 'typical'"),
        ({"chunk": 0}, r"chunk = 0 \(valid: \"auto\", or a whole number, 1 or more"),
        ({"chunk": True}, "chunk = True"),
        ({"interval": 0}, "interval = 0"),
        ({"chunk": 2, "range": 3}, 'range is for the search of chunk = "auto"'),
        ({"scheme": "typical", "threads": 2}, 'threads is for scheme = "cgdp"'),
    ],
)
def test_a_wrong_option_is_named(train: Train, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptionError, match=message) as caught:
        train(2, sync=options)
    assert "level 'gpu': sync" in str(caught.value)


def test_the_readme_tells_every_option_of_a_sync() -> None:
    table = re.findall(r"^\| (`.*?) \|", README.read_text(encoding="utf-8"), re.MULTILINE)
    told = {name for row in table for name in re.findall(r"`(\w+)`", row)}
    assert told == {*NAMES, *rates.OPTIONS, *rates.SHARES}


def test_workers_without_streams_are_refused(train: Train) -> None:
    level = Level("worker", 2, workers="threads", sync=SyncSpec("cgdp"))
    machine = Machine("toys", (level,), fingerprint="any")
    with pytest.raises(CompositionError, match=r"level 'worker': .*have none; set workers"):
        train(2, machine=machine)


def test_siblings_in_other_processes_are_refused() -> None:
    for team in (None, Team(2)):
        group = Group(("node", "gpu"), 0, team, "float32", {}, remote=True)
        with pytest.raises(CompositionError, match="siblings in other processes; give the level"):
            plugin().gradient_sync(group)


def test_one_accelerator_needs_nobody(train: Train) -> None:
    trainer = train(1)
    assert trainer.step(2).iteration == 2
    assert not [note for note in trainer.notes if "cgdp" in note]


def test_threads_are_those_asked_for_or_the_processors_of_this_process() -> None:
    group = Group(("gpu",), 0, Team(2), "float32", {})
    assert host_threads(group, Options(threads=7)) == 7
    assert host_threads(group, Options()) >= 1
