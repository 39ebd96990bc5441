"""The installed plugin is found by its entry point, and is as its manifest says."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import click

import demitasse


def test_the_entry_point_loads_what_the_manifest_declares() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="cli")
    plugin = point.load()
    (manifest,) = [m for m in demitasse.discover() if m.name == "cli"]
    assert manifest.problem == ""
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, "demitasse_impl")}
    assert hooks == set(manifest.roles) == {"commands"}
    given = plugin.commands()
    assert set(given) == set(manifest.roles["commands"]["commands"])
    for name, command in given.items():
        assert isinstance(command, click.Command)
        assert command.name == name


def test_the_script_is_the_plugin_s() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="demitasse")
    assert script.value == "demitasse_cli.main:main"


def test_the_core_as_a_program_is_the_script() -> None:
    asked = [sys.executable, "-m", "demitasse", "trian"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("demitasse: unknown command 'trian'; did you mean 'train'?")
