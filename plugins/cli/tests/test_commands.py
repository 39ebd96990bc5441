"""The commands that do not train."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from demitasse import Composition, Manifest, Weights
from demitasse_cli.main import main

Install = Callable[..., Path]
API = 'api = ">=0.1,<0.2"\n'


# test


def test_a_solver_s_test_nets_are_scored_over_its_iterations(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "solver.prototxt", "--weights", "w.caffemodel", "--json", "-"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert result["scores"] == {"accuracy": 0.75, "loss": 3.0, "1.accuracy": 0.75, "1.loss": 5.0}
    assert (result["iterations"], result["loss"]) == (8, 3.0)
    assert {"seconds", "samples_per_second", "composition"} <= set(result)
    assert runtime.asked["weights"] == "w.caffemodel"
    assert captured.err.startswith("accuracy 0.7500  loss 3.0000  1.accuracy 0.7500")


@pytest.mark.parametrize(
    ("given", "told", "twice"),
    [
        ([], "(11 batches, 1,100 samples, 99 of them twice to fill the last batch,", 99),
        (["--iterations", "4"], "(4 batches, 400 samples, 0.0 s)", 0),
    ],
)
def test_a_net_is_scored_on_all_samples_unless_told(
    given: list[str],
    told: str,
    twice: int,
    runtime: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """For 1,001 samples in batches of 100, the last batch is filled from the start, which is
    reported."""
    assert main(["test", "net.prototxt", "--weights", "w", "--json", "r.json", *given]) == 0
    assert told in capsys.readouterr().out
    assert json.loads((tmp_path / "r.json").read_text())["samples_twice"] == twice


def test_a_file_that_is_neither_is_told_what_is_wrong_with_it(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["test", "other.prototxt", "--weights", "w"]) == 2
    assert capsys.readouterr().err == "demitasse: other.prototxt:7: not a net\n"


def test_a_net_without_samples_cannot_be_scored(
    runtime: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = SimpleNamespace(feeds=[], inputs={"x": None})
    net = SimpleNamespace(graph=graph, definition=SimpleNamespace(layers=()))
    monkeypatch.setattr(runtime, "net", lambda definition, **options: net)
    assert main(["test", "net.prototxt", "--weights", "w"]) == 2
    error = capsys.readouterr().err
    assert "has no data" in error
    assert "or the solver" in error


# time


def test_what_cannot_be_timed_is_told_once(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "weights.demitasse"]) == 2
    assert capsys.readouterr().err == "demitasse: weights.demitasse:7: not a net\n"


@pytest.mark.parametrize("model", ["solver.prototxt", "train_net.prototxt"])
def test_layers_are_timed_with_their_rates(
    model: str, runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["time", model, "--iterations", "3"]) == 0
    head, *rows, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["layer", "phase", "ms", "share", "GFLOP/s", "GB/s", "plugin", "kernel"]
    cells = [row.split() for row in rows]
    # conv1 backward: two operations of 2 MFLOP, 1 MB and 3 ms each.
    assert cells[3] == [
        "conv1",
        "backward",
        "6.000",
        "60.0%",
        "0.67",
        "0.33",
        "arithmetic",
        "direct",
    ]
    assert [row[:2] for row in cells[:3]] == [
        ["conv1", "forward"],
        ["relu1", "forward"],
        ["relu1", "backward"],
    ]
    assert total.startswith(
        "total 10.000 ms (forward 3.000 ms  backward 7.000 ms)  "
        "the first of 2 workers, its share of a batch of 32  measured, mean of 3 iterations"
    )
    assert runtime.made.profiled == 4


def test_a_net_without_a_loss_is_timed_forward(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["time", "deploy_net.prototxt", "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert "forward only" in captured.err
    assert "no loss to train" in captured.err
    result = json.loads(captured.out)
    assert result["phases"] == {"forward": pytest.approx(0.003)}
    assert result["seconds"] == pytest.approx(0.003)
    assert [layer["layer"] for layer in result["layers"]] == ["conv1", "relu1"]


# explain


def test_without_a_model_the_composition_is_explained(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--hw", "box.toml"]) == 0
    assert capsys.readouterr().out == f"{runtime.composition}\n"
    assert runtime.asked == {"hw": "box.toml", "plugins": None, "options": None}


# convert


def test_weights_are_converted_and_counted(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = [np.zeros((20, 1, 5, 5)), np.zeros(20)]
    runtime.weights["a.demitasse"] = Weights(
        {"conv1": arrays}, iteration=7, state={"history": {"conv1": arrays}}
    )
    assert main(["convert", "a.demitasse", "b.demitasse"]) == 0
    assert runtime.weights["b.demitasse"] is runtime.weights["a.demitasse"]
    assert capsys.readouterr().out == (
        "wrote b.demitasse: 1 layer, 520 parameters; iteration 7; solver state history; 2.00 KiB\n"
    )


def test_what_a_format_cannot_hold_is_said(runtime: Any, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = [np.zeros(5)]
    runtime.weights["a.demitasse"] = Weights(
        {"conv1": arrays}, iteration=7, state={"history": {"conv1": arrays}}
    )
    assert main(["convert", "a.demitasse", "b.caffemodel"]) == 0
    assert capsys.readouterr().out == (
        "wrote b.caffemodel: 1 layer, 5 parameters; 2.00 KiB; left out, since the format has no "
        "place for it: iteration 7, solver state history\n"
    )


def test_what_is_there_is_overwritten_only_by_force(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.weights["a.caffemodel"] = Weights({"conv1": [np.zeros(3)]})
    target = tmp_path / "b.demitasse"
    target.write_text("precious")
    assert main(["convert", "a.caffemodel", "b.demitasse"]) == 2
    assert "--force" in capsys.readouterr().err
    assert target.read_text() == "precious"
    assert main(["convert", "a.caffemodel", "b.demitasse", "--force"]) == 0
    assert target.read_text() != "precious"


# detect


def test_the_machine_is_printed_or_written(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detect"]) == 0
    assert capsys.readouterr().out == 'name = "abacus"\n'
    assert main(["detect", "--output", "here.toml"]) == 0
    assert (tmp_path / "here.toml").read_text() == 'name = "here"\n'


def test_a_description_replaces_nothing_unasked(
    runtime: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "here.toml").write_text("precious")
    assert main(["detect", "--output", "here.toml"]) == 2
    assert "--force" in capsys.readouterr().err
    assert (tmp_path / "here.toml").read_text() == "precious"
    assert main(["detect", "--output", "here.toml", "--force"]) == 0
    assert (tmp_path / "here.toml").read_text() == 'name = "here"\n'
    capsys.readouterr()
    assert main(["detect", "--output", "here.toml/here.toml"]) == 2
    assert "--output here.toml/here.toml cannot be written" in capsys.readouterr().err


def test_a_machine_is_measured_by_the_plugin_that_can(
    runtime: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["detect", "--measure"]) == 2
    assert "no composed plugin has a program 'measure'" in capsys.readouterr().err
    manifest = Manifest("stopwatch", roles={"programs": {}})
    measure = SimpleNamespace(programs=lambda: {"measure": lambda runtime: 'name = "measured"'})
    runtime.composition = Composition("abacus", (manifest,), (), (), {"stopwatch": measure})
    assert main(["detect", "--measure"]) == 0
    assert capsys.readouterr().out == 'name = "measured"\n'


# plugins


def test_plugins_are_listed_from_manifests_alone(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("sleeper", API + 'summary = "Sleeps"\n[roles.observe]\n', "raise SystemExit(99)")
    install("torn", "api = [", "")
    assert main(["plugins"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert rows["sleeper"].split() == ["sleeper", "1.5", "when", "named", "observe", "Sleeps"]
    assert "PROBLEM: its manifest" in rows["torn"]
    assert "The demitasse command" in rows["cli"]


def test_plugins_as_json(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install("sleeper", API + "automatic = true\n[roles.kernels]\npriority = 7\n", "")
    install("torn", "api = [", "")
    assert main(["plugins", "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["plugins"]}
    assert rows["sleeper"]["roles"] == {"kernels": {"priority": 7}}
    assert rows["sleeper"]["automatic"] is True
    assert rows["sleeper"]["problem"] is None
    assert rows["sleeper"]["distribution"] == "stranger-sleeper"
    assert "cannot be read" in rows["torn"]["problem"]


# doctor


def findings(capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, str]]:
    rows = json.loads(capsys.readouterr().out)["findings"]
    return {row["subject"]: row for row in rows}


def test_the_doctor_finds_what_is_wrong_with_each_plugin(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "from demitasse import hookimpl\n@hookimpl\ndef observe(): return print\n"
    install("healthy", API + "[roles.observe]\n", hook)
    install("differing", API + "[roles.kernels]\n", hook)
    install("unloadable", API + "[roles.observe]\n", "import no_such_library")
    install("outdated", 'api = ">=7"\n[roles.observe]\n', hook)
    install("lonely", API + 'requires = ["nobody"]\n[roles.observe]\n', hook)
    assert main(["doctor", "--json", "-"]) == 1
    found = findings(capsys)
    assert found["plugin healthy"]["level"] == "ok"
    assert "declared only kernels; implemented only observe" in found["plugin differing"]["message"]
    assert "No module named 'no_such_library'" in found["plugin unloadable"]["message"]
    remedies = {
        name: found[f"plugin {name}"]["remedy"] for name in ("unloadable", "differing", "outdated")
    }
    assert remedies == {
        "unloadable": "pip install --force-reinstall stranger-unloadable installs its dependencies; "
        "install no_such_library if it is not one of them; or pip uninstall stranger-unloadable",
        "differing": "mark a function kernels of stranger_differing.plugin with hookimpl; add a "
        "table [roles.observe] to its plugin.toml; or pip uninstall stranger-differing",
        "outdated": "pip install --upgrade demitasse stranger-outdated; or pip uninstall "
        "stranger-outdated",
    }
    assert ">=7" in found["plugin outdated"]["message"]
    assert all(found[f"plugin {name}"]["level"] == "problem" for name in remedies)


def test_the_doctor_finds_hooks_that_are_none_and_arguments_that_no_hook_is_given(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "from demitasse import hookimpl\n@hookimpl\ndef {}({}): return print\n"
    install("misspelt", API + "[roles.observe]\n", hook.format("obsrve", ""))
    install("asking", API + "[roles.observe]\n", hook.format("observe", "optoins"))
    assert main(["doctor", "--json", "-"]) == 1
    found = findings(capsys)
    assert "unknown hook 'obsrve'; did you mean 'observe'?" in found["plugin misspelt"]["message"]
    assert "hook observe: unknown argument 'optoins'; did you mean" in found["plugin asking"]["message"]
    assert {found[f"plugin {name}"]["level"] for name in ("misspelt", "asking")} == {"problem"}


def test_the_doctor_finds_a_distribution_without_an_entry_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "demitasse_npu-1.2.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: demitasse-npu\nVersion: 1.2\n")
    (facts / "entry_points.txt").write_text("[demitasse.plugin]\nnpu = demitasse_npu.plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["doctor", "--json", "-"]) == 1
    told = findings(capsys)["distribution demitasse-npu"]
    assert told["message"] == (
        "has no entry point in the group 'demitasse.plugins' (its groups: demitasse.plugin)"
    )
    assert '[project.entry-points."demitasse.plugins"]' in told["remedy"]
    assert main(["explain", "--plugins", "+npu"]) == 2
    line = capsys.readouterr().err
    assert "demitasse-npu is installed, but has no entry point of that name in the group" in line


def test_the_doctor_says_where_a_module_is_broken(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("ending", API + "[roles.observe]\n", "import sys\nsys.exit('no licence')")
    assert main(["doctor", "--json", "-"]) == 1
    told = findings(capsys)["plugin ending"]
    assert told["message"] == "cannot be imported: SystemExit: no licence"
    assert re.search(r"fix it in .*plugin\.py, line 2, or pip install --force-reinstall", told["remedy"])


def test_the_doctor_has_a_core_upgraded_that_is_older_than_a_plugin(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("newer", API + "[roles.observe]\n", "from demitasse import hookimpl, of_a_later_version")
    assert main(["doctor", "--json", "-"]) == 1
    remedy = findings(capsys)["plugin newer"]["remedy"]
    assert remedy == "pip install --upgrade demitasse stranger-newer; or pip uninstall stranger-newer"


@pytest.mark.parametrize(
    ("name", "more", "told", "remedy"),
    [
        (
            "clashing",
            'conflicts = ["other"]',
            "conflicts with 'other', and both are automatic",
            "-other",
        ),
        (
            "needing",
            'requires = ["manual"]',
            "is automatic but requires 'manual', which is not",
            "+manual",
        ),
    ],
)
def test_the_doctor_finds_automatic_plugins_that_do_not_go_together(
    install: Install, capsys: pytest.CaptureFixture[str], name: str, more: str, told: str, remedy: str
) -> None:
    hook = "from demitasse import hookimpl\n@hookimpl\ndef observe(): return print\n"
    install("other", API + "automatic = true\n[roles.observe]\n", hook)
    install("manual", API + "[roles.observe]\n", hook)
    install(name, API + f"automatic = true\n{more}\n[roles.observe]\n", hook)
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert f"{told}: nothing can be composed" in shown
    assert f"--plugins {remedy}" in shown
    assert shown.endswith("\n1 problem\n")


def test_the_doctor_finds_one_operation_defined_twice(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = """
from demitasse import hookimpl
from demitasse.operations import define, same_as

@hookimpl
def operations():
    return [define("activation", "relu", "y = x", "x", "y", same_as("x"))]
"""
    install("again", API + "automatic = true\n[roles.operations]\n", hook)
    assert main(["doctor", "--json", "-"]) == 1
    told = findings(capsys)["plugin again"]
    assert "plugin 'again': operation 'relu' is already in the vocabulary" in told["message"]


def test_the_doctor_asks_plugins_for_their_own_findings(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        "asked",
        API + "[roles.diagnose]\n",
        "from demitasse import Finding, hookimpl\n@hookimpl\ndef diagnose():\n"
        "    yield Finding('problem', 'libasked', 'is not there', 'apt install libasked')\n",
    )
    install(
        "fallible",
        API + "[roles.diagnose]\n",
        "from demitasse import hookimpl\n@hookimpl\ndef diagnose():\n    raise OSError('no bus')\n",
    )
    hook = "from demitasse import Finding, hookimpl\n@hookimpl\n"
    ready = "    return [Finding('ok', 'libready', 'is there')]\n"
    install("curious", API + "[roles.diagnose]\n", f"{hook}def diagnose(topics):\n{ready}")
    install(
        "told",
        API + '[roles.diagnose]\ntopics = { disk = "speed" }\n',
        f"{hook}def diagnose():\n{ready}",
    )
    install("vague", API + "[roles.diagnose]\n", f"{hook}def diagnose():\n    return ['fine']\n")
    assert main(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert shown.count("libready") == 2
    assert "its diagnosis failed: TypeError: 'fine' is not a Finding" in shown
    assert "problem  libasked" in shown
    assert "is not there; remedy: apt install libasked" in shown
    assert "its diagnosis failed: OSError: no bus" in shown


def test_the_doctor_finds_two_plugins_of_one_name(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "from demitasse import hookimpl\n@hookimpl\ndef observe(): return print\n"
    metadata = install("twin", API + "[roles.observe]\n", hook).with_name("stranger_twin-1.5.dist-info")
    other = shutil.copytree(metadata, metadata.with_name("other_twin-1.5.dist-info"))
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other-twin\nVersion: 1.5\n")
    assert main(["doctor", "--json", "-"]) == 1
    told = json.loads(capsys.readouterr().out)
    (found,) = (each for each in told["findings"] if each["level"] == "problem")  # one in all
    assert found["subject"] == "plugin twin"
    assert {"other-twin", "stranger-twin"} < {*found["message"].replace(",", "").split()}


def test_the_doctor_finds_a_command_claimed_twice(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "from demitasse import hookimpl\n@hookimpl\ndef commands(): return {}\n"
    for name in ("one", "two"):
        install(name, API + '[roles.commands]\ncommands = { greet = "x" }\n', hook)
    assert main(["doctor", "--json", "-"]) == 1
    found = findings(capsys)["command greet"]
    assert found["message"] == "is claimed by the plugins one and two"


@pytest.mark.parametrize("given", ["None", "{'gret': print}", "['greet']"])
def test_a_command_that_is_declared_and_not_given_is_told_with_what_was(
    install: Install, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    hook = f"from demitasse import hookimpl\n@hookimpl\ndef commands(): return {given}\n"
    install("shy", API + '[roles.commands]\ncommands = { greet = "x" }\n', hook)
    assert main(["greet"]) == 2
    told = capsys.readouterr().err
    assert "declares the command 'greet' but does not provide it: its hook commands returned " in told
    assert "(valid: a table with 'greet')" in told


def test_the_doctor_tells_a_manifest_s_name_from_its_versions(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = install("renamed", API + "[roles.observe]\n", "")
    (folder / "plugin.toml").write_text(f'name = "other"\n{API}[roles.observe]\n')
    assert main(["doctor", "--json", "-"]) == 1
    assert findings(capsys)["plugin renamed"]["remedy"].startswith("fix its plugin.toml, or ")


def test_a_plugin_whose_commands_are_no_table_harms_no_other(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    hook = "from demitasse import hookimpl\n@hookimpl\ndef commands(): return {}\n"
    install("terse", API + '[roles.commands]\ncommands = ["greet"]\n', hook)
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "greet" not in shown
    assert "Train a net from a solver file" in shown
    assert main(["doctor", "--json", "-"]) == 1
    told = findings(capsys)["plugin terse"]
    assert "role commands: commands = ['greet'] (valid: a table)" in told["message"]
    assert "fix its plugin.toml" in told["remedy"]


def test_the_doctor_knows_a_thread_count_from_nonsense(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    assert main(["doctor", "--json", "-"]) == 1
    found = findings(capsys)
    assert found["OMP_NUM_THREADS"]["level"] == "problem"
    assert "unset OMP_NUM_THREADS" in found["OMP_NUM_THREADS"]["remedy"]
    assert found["NUMBA_NUM_THREADS"]["level"] == "note"
    assert found["python"]["level"] == "ok"
