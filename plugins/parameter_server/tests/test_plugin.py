"""The plugin is found, its manifest is correct, and its command finds and remembers the best shape."""

from __future__ import annotations

import inspect
import json
import tomllib
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from demitasse import CompositionError, Level, Machine, compose, load_machine
from demitasse_parameter_server import trials
from demitasse_parameter_server.commands import workers

ROOT = Path(__file__).parents[3]
DIGITS = ROOT / "examples/digits/digits_solver.prototxt"


def plugin() -> Any:
    (entry,) = entry_points(group="demitasse.plugins", name="parameter_server")
    return entry.load()


def test_manifest_declares_the_hooks_that_are_implemented() -> None:
    text = files("demitasse_parameter_server").joinpath("plugin.toml").read_text("utf-8")
    manifest = tomllib.loads(text)
    implemented = {
        name
        for name, member in inspect.getmembers(plugin(), inspect.isfunction)
        if hasattr(member, "demitasse_impl")
    }
    assert manifest["name"] == "parameter_server"
    assert not manifest["automatic"]
    assert set(manifest["roles"]) == implemented
    assert set(manifest["roles"]["commands"]["commands"]) == set(plugin().commands())


def test_shapes_use_all_cores() -> None:
    assert trials.shapes(6) == [(1, 6), (2, 3), (3, 2), (6, 1)]
    machine = Machine("box", (Level("node", cores=6), Level("socket", 2)), ("caffe",))
    for count, threads in trials.shapes(6):
        outer, inner = trials.arranged(machine, count, threads).levels
        assert (outer.cores, inner.count, inner.cores, inner.workers) == (6, count, threads, "threads")


def test_the_best_is_measured_written_as_a_description_and_remembered(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    description, answer = tmp_path / "best.toml", tmp_path / "answer.json"
    two = tmp_path / "two.toml"
    two.write_text(
        'schema = 1\nname = "two"\n'
        'fingerprint = "any"\n'
        'plugins = ["caffe", "training", "datasets", "reference"]\n'
        '[[level]]\nname = "node"\ncores = 2\n',
        encoding="utf-8",
    )
    asked = [str(DIGITS), "--hw", str(two), "--seconds", "0.1", "--output", str(description)]
    first = CliRunner().invoke(workers, [*asked, "--json", str(answer)], standalone_mode=False)
    assert first.exception is None
    told = json.loads(answer.read_text("utf-8"))
    assert [(t["workers"], t["threads"]) for t in told["trials"]] == [(1, 2), (2, 1)]
    assert told["best"]["seconds"] == min(t["seconds"] for t in told["trials"])
    assert told["source"] == "measured"
    machine = load_machine(description)
    assert machine.levels[-1].count == told["best"]["workers"]
    again = CliRunner().invoke(workers, [*asked, "--json", "-"], standalone_mode=False)
    assert json.loads(again.output) == {**told, "source": "remembered"}


@pytest.mark.parametrize("plugins", ["", 'plugins = ["caffe", "training", "datasets", "reference"]\n'])
def test_what_is_written_trains(plugins: str, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    machine, best = tmp_path / "machine.toml", tmp_path / "best.toml"
    machine.write_text(
        f'schema = 1\nname = "two"\n{plugins}fingerprint = "any"\n[[level]]\nname = "node"\ncores = 2\n',
        encoding="utf-8",
    )
    asked = [str(DIGITS), "--hw", str(machine), "--seconds", "0.1", "--output", str(best)]
    assert CliRunner().invoke(workers, asked, standalone_mode=False).exception is None
    with compose(best) as runtime, runtime.trainer(DIGITS) as trainer:
        assert trainer.workers == load_machine(best).levels[-1].count
        assert trainer.step(1).iteration == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'cores = 2\nworkers = "threads"\ncount = 2\nsync = { plugin = "reference" }',
            "does so already",
        ),
        ('cores = 2\n[[level]]\nname = "gpu"\nworkers = "streams"', "level 'gpu' does so already"),
        ("cores = 2\ncount = 4", "of one 'worker', but there are 4; describe only one"),
        ("", "level 'worker' has no cores for workers to share; add cores"),
        ("cores = 2\n#elsewhere", "describes another machine, but workers are tried on this one"),
    ],
)
def test_a_machine_on_whose_cores_nothing_can_be_chosen_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    machine = tmp_path / "machine.toml"
    known = "" if "elsewhere" in text else 'fingerprint = "any"\n'
    machine.write_text(f'schema = 1\nname = "m"\n{known}[[level]]\nname = "worker"\n{text}\n')
    asked = CliRunner().invoke(workers, [str(DIGITS), "--hw", str(machine)], standalone_mode=False)
    assert isinstance(asked.exception, CompositionError)
    assert str(asked.exception).startswith(f"{machine}")
    assert message in str(asked.exception)


def test_a_level_that_is_called_worker_has_workers_of_another_name() -> None:
    machine = Machine("box", (Level("worker", cores=2),), ("caffe",))
    assert [level.name for level in trials.arranged(machine, 2, 1).levels] == ["worker", "thread"]


_UNSOUND = (("1e999", "1"), ("0", "1"), ("-1", "1"), ("1", "NaN"), ("1", "0"), ("1", "9" * 400))
"""Numbers of workers and seconds of trials that are invalid."""


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", '{"schema": 1, "nets": 3}', '{"schema": 2, "nets": {}}', "[" * 100_000),
        *(
            f'{{"schema": 1, "nets": {{"net": [{{"workers": {w}, "threads": 1, "seconds": {s}}}]}}}}'
            for w, s in _UNSOUND
        ),
    ],
    ids=lambda text: text[-30:],
)
def test_a_damaged_memory_is_as_none_and_is_made_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "trials.json"
    path.write_text(content, encoding="utf-8")
    assert trials.remembered(path, "net") == []
    kept = [trials.Trial(2, 1, 0.5)]
    trials.remember(path, "net", kept)
    trials.remember(path, "other", [])
    assert trials.remembered(path, "net") == kept
    assert [each.name for each in tmp_path.iterdir()] == ["trials.json"]


def test_trials_that_cannot_be_kept_count_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "plain").write_text("")
    trials.remember(tmp_path / "plain" / "trials.json", "net", [trials.Trial(1, 2, 0.5)])
    assert "trials cannot be saved in" in caplog.text
