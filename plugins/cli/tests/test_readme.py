"""The README lists the options that the commands have."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from demitasse_cli.plugin import commands

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
PLANNING = {"train", "test", "time", "explain"}
IGNORED = {("time", "--weights")}
"""Options that are accepted for Caffe's scripts, without effect."""


def options(command: click.Command) -> list[list[str]]:
    """Return the spellings of each option of a command."""
    return [[*option.opts] for option in command.params if isinstance(option, click.Option)]


def plain(option: str) -> str:
    """Normalise an option's name: Caffe's flags have one dash, and underscores."""
    return option.lstrip("-").replace("-", "_")


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_of_a_command_is_told(name: str) -> None:
    told = {plain(word) for word in re.findall(r"(?<![\w-])-{1,2}[a-z][\w-]*", README)}
    missing = [each for each in options(commands()[name]) if told.isdisjoint(map(plain, each))]
    assert not missing


def test_every_option_in_the_table_is_one_of_the_commands_that_it_names() -> None:
    made = commands()
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \| .*? \|$", README, flags=re.MULTILINE)
    assert len(rows) > 10
    for named, of in rows:
        listed = set(re.findall(r"`(\w+)`", of))
        told = set(made) - listed if of.startswith("all but") else listed
        told |= PLANNING if of.startswith("those that plan") else set()
        for option in re.findall(r"`(--[a-z-]+)", named):
            having = {
                name
                for name, command in made.items()
                if any(option in spellings for spellings in options(command))
                and (name, option) not in IGNORED
            }
            assert having == told, option
