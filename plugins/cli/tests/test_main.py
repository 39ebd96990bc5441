"""The command line as a whole: finding commands, and reporting mistakes in one line."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import demitasse
from demitasse_cli import garbage, strangers
from demitasse_cli.main import main

Install = Callable[..., Path]
COMMANDS = ["train", "test", "time", "explain", "detect", "plugins", "doctor", "convert"]
API = 'api = ">=0.1,<0.2"\n'
GREETER = """
import click
from demitasse import hookimpl

@hookimpl
def commands():
    @click.command()
    def greet():
        click.echo("good day")
    return {"greet": greet}
"""


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("demitasse: ")
    return captured.err


def test_alone_it_prints_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    for name in COMMANDS:
        assert f"\n  {name} " in shown


def test_version_is_the_core_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert demitasse.__version__ in capsys.readouterr().out


def test_an_interrupt_of_the_imports_is_one_line() -> None:
    code = (
        "import builtins, sys; from demitasse_cli.main import main\n"
        "def interrupted(*given): raise KeyboardInterrupt\n"
        "builtins.__import__ = interrupted\n"
        "sys.exit(main(['--help']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "demitasse: interrupted\n")


def test_help_imports_nothing_heavy() -> None:
    heavy = ["numpy", "numba", "rich", "google.protobuf", "sklearn", "click.testing"]
    code = (
        "import sys; from demitasse_cli.main import main; main(['--help']); "
        f"print([m for m in {heavy!r} if m in sys.modules]); "
        "print(sorted({m.split('.')[0] for m in sys.modules if m.startswith('demitasse_')}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    own = "['demitasse_cli', 'demitasse_contracts', 'demitasse_host']"  # the only plugin is cli
    assert done.stdout.splitlines()[-2:] == ["[]", own]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: demitasse {command} ")


def test_a_wrong_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tran", "x.prototxt"]) == 2
    assert "unknown command 'tran'; did you mean 'train'?" in error_line(capsys)


def test_a_tool_of_caffes_is_answered_with_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upgrade_net_proto_text", "old.prototxt", "new.prototxt"]) == 2
    assert "what it does in Caffe, 'convert' does here" in error_line(capsys)


def test_a_wrong_option_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "x.prototxt", "--iteration", "3"]) == 2
    line = error_line(capsys)
    assert "did you mean '--iterations'?" in line
    assert "demitasse train --help" in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "SOLVER is missing"),
        (["train", "s", "--scaling", "medium"], "(valid: strong, weak)"),
        (["train", "s", "--set", "base_lr"], "'base_lr' is not KEY=VALUE"),
        (["train", "s", "--option", f"a.b={'[' * 5000}"], "(5,000 characters) is nested too deep"),
        (["train", "s", "--option", f"a.b={'9' * 5000}"], "(5,000 characters) is not a number"),
        (["train", "s", "--option", "lr=1"], "'lr=1' is not PLUGIN.KEY=VALUE"),
        (["test", "net"], "--weights"),
        (
            ["train", ""],
            "SOLVER is empty (is a shell variable not set?); see demitasse train ",
        ),
        (["train", "-solver", ""], "--solver is empty (is a shell"),
        (["train", "s", "--hw", ""], "--hw is empty (is a shell"),  # not the working folder
        (["curve", "a.json", ""], "RUNS... is empty (is a shell"),
        (["check", ""], "PLUGIN is empty (is a shell"),
        (["draw", ""], "NET is empty (is a shell"),
        (["data", "convert", "", "set"], "SOURCE is empty (is a shell"),
        (["convert_imageset", "", "list.txt", ""], "LIST or DB is empty (is a shell"),
    ],
)
def test_a_wrong_use_is_one_line(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert words in error_line(capsys)


@pytest.mark.parametrize(
    "error",
    [
        demitasse.ModelError("lenet.prototxt:7: layer 'conv1'\nhas no bottom"),
        PermissionError(13, "Permission denied", "lenet.prototxt"),
        MemoryError("lenet.prototxt needs 5 TiB, 1 GiB is free"),
    ],
)
def test_a_user_s_mistake_is_one_line_and_status_2(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compose(**options: object) -> None:
        raise error

    monkeypatch.setattr(demitasse, "compose", compose, raising=False)
    assert main(["explain"]) == 2
    assert "lenet.prototxt" in error_line(capsys)
    with pytest.raises(type(error)):
        main(["explain", "--debug"])


def test_our_own_fault_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def compose(**options: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(demitasse, "compose", compose, raising=False)
    with pytest.raises(ZeroDivisionError):
        main(["explain"])


def test_an_error_in_a_strangers_plugin_is_a_line_that_names_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package, facts = tmp_path / "toys_npu", tmp_path / "toys_npu-1.2.dist-info"
    package.mkdir()
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: toys-npu\nVersion: 1.2\n")
    (facts / "entry_points.txt").write_text("[demitasse.plugins]\nnpu = toys_npu.plugin\n")
    (package / "__init__.py").touch()
    (package / "plugin.toml").write_text('name = "npu"\napi = ">=0.1"\n[roles.programs]\n')
    (package / "plugin.py").write_text("def look(**options):\n    return {}['tile']\n")
    monkeypatch.syspath_prepend(tmp_path)
    look = importlib.import_module("toys_npu.plugin").look
    monkeypatch.setattr(demitasse, "compose", look, raising=False)
    assert main(["explain"]) == 2
    told = "plugin 'npu' (toys-npu 1.2) raised KeyError at toys_npu.plugin:2, in look: 'tile' (--debug"
    assert told in error_line(capsys)
    with pytest.raises(KeyError):
        main(["explain", "--debug"])


@pytest.mark.parametrize("name", ["parameter_server", "cpu"])
def test_no_plugin_of_ours_is_a_stranger_s(name: str) -> None:
    """Names in metadata may have a hyphen where the distribution's name has none."""
    code = compile("def look(): return {}['tile']", "plugin.py", "exec")
    exec(code, found := {"__name__": f"demitasse_{name}.plugin"})
    try:
        found["look"]()
    except KeyError as error:
        assert strangers.blamed(error) is None


def test_an_interrupted_command_ends_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compose(**options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demitasse, "compose", compose, raising=False)
    assert main(["explain"]) == 130
    assert error_line(capsys) == "demitasse: interrupted\n"


def test_a_stranger_s_command_is_listed_unimported_and_runs(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("greeter", API + '[roles.commands]\ncommands = { greet = "Say good day" }\n', GREETER)
    assert main(["--help"]) == 0
    assert "Say good day (greeter)" in capsys.readouterr().out
    assert "stranger_greeter.plugin" not in sys.modules
    assert main(["greet"]) == 0
    assert capsys.readouterr().out == "good day\n"


def test_a_command_claimed_twice_names_both_plugins(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("first", "second"):
        install(name, API + '[roles.commands]\ncommands = { greet = "Say good day" }\n', GREETER)
    assert main(["greet"]) == 2
    line = error_line(capsys)
    assert "'first' (stranger-first)" in line
    assert "'second' (stranger-second)" in line
    assert main(["--help"]) == 0
    assert "claimed by first and second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("def commands(): return {}", "its hook commands returned {} (valid: a table with 'greet')"),
        ("def commands(): return {'greet': print}", "not a click command"),
    ],
)
def test_a_broken_stranger_is_named_and_disturbs_nobody_else(
    module: str, words: str, install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = f"broken{abs(hash(module))}"
    install(broken, API + '[roles.commands]\ncommands = { greet = "Say good day" }\n', module)
    assert main(["greet"]) == 2
    line = error_line(capsys)
    assert words in line
    assert f"plugin '{broken}'" in line
    assert main(["train", "--help"]) == 0


def test_the_name_of_a_broken_plugin_is_told_with_an_unknown_command(
    install: Install, capsys: pytest.CaptureFixture[str]
) -> None:
    install("broken", 'api = ">=7"\n[roles.commands]\ncommands = { greet = "x" }\n', GREETER)
    assert main(["greet"]) == 2
    assert "demitasse doctor" in (line := error_line(capsys))
    assert "broken" in line


def test_a_reader_that_goes_away_is_no_fault() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as pipe:  # noqa: PTH123  a descriptor has no path
        done = subprocess.run(
            [sys.executable, "-m", "demitasse_cli", "--help"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_command_looks_for_garbage_again_once_it_has_started() -> None:
    """In a separate process: what stays is frozen, and collection is on when the command works."""
    lines = [
        "import gc, sys",
        "from demitasse_cli import garbage, main",
        "sys.argv = ['demitasse', 'plugins']",
        "states = []",
        "settle = garbage.settle",
        "note = lambda: states.append(gc.isenabled())",
        "garbage.settle = lambda: (note(), settle(), note())",
        "main.main()",
        "print(states, gc.get_freeze_count() > 1000)",
    ]
    command = [sys.executable, "-c", "\n".join(lines)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[False, True] True", done.stderr


def test_an_application_that_runs_a_command_keeps_its_collection() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    assert main(["--version"]) == 0
    garbage.settle()
    assert gc.isenabled() and gc.get_freeze_count() == frozen


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="this system has no such signal")
def test_a_command_that_dies_of_a_page_that_cannot_be_read_says_where() -> None:
    code = """
import os, signal, sys
from demitasse_cli.main import main
sys.argv = ["demitasse", "--version"]
main()
def reads_a_page():
    os.kill(os.getpid(), signal.SIGBUS)
reads_a_page()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == -signal.SIGBUS
    assert "Bus error" in done.stderr
    assert "in reads_a_page" in done.stderr
