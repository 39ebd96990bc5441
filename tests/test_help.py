"""What each command's ``--help`` shows, and the pages say of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from demitasse_cli.command_line import command_line
from demitasse_cli.main import main

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/*.md", "hwdesc/*.md", "tools/**/*.md", "plugins/*/*.md", "examples/*/*.md")
GROUP = command_line()
CONTEXT = click.Context(GROUP, info_name="demitasse")


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Each command by its words, sub-commands too."""
    for name in group.list_commands(CONTEXT):
        command = group.get_command(CONTEXT, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")
        else:
            yield f"{path}{name}", command


def test_each_ends_with_an_example_that_is_understood(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    every = list(commands(GROUP))
    assert len(every) > 20
    for path, command in every:
        assert main([*path.split(), "--help"]) == 0
        example = capsys.readouterr().out.rstrip().rpartition("\n\n")[2]
        assert example.startswith(f"  Example: demitasse {path} ")
        assert "\n" not in example, path
        words = example.partition(f"demitasse {path} ")[2].split()
        command.make_context(path, words, parent=CONTEXT)  # raises click's UsageError


def test_each_says_what_its_options_are_for() -> None:
    options = [
        (path, each)
        for path, command in commands(GROUP)
        for each in command.get_params(CONTEXT)
        if isinstance(each, click.Option)
    ]
    assert [(path, each.opts) for path, each in options if not each.help and not each.hidden] == []


def test_a_command_of_several_shows_them_when_it_is_named_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["data"]) == 0
    shown = capsys.readouterr()
    assert "\n  check    Compare checksums.\n" in shown.out and shown.err == ""


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("tr", ["plain,train"]),
        ("train --prec", ["plain,--precision"]),
        ("train --precision b", ["plain,bf16"]),
        ("train --hw hw", ["file,hw"]),
        ("data p", ["plain,predict"]),
    ],
)
def test_shells_complete_words(
    words: str, completed: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_DEMITASSE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"demitasse {words}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    assert main([]) == 0
    assert capsys.readouterr().out.splitlines() == completed


SAID = re.compile(r"(?<![\w/.-])demitasse ([a-z_]+)((?: [^`#|\n]*)?)")
"""A command in a page, up to what is no word of it."""


def test_pages_give_commands_the_options_that_they_have() -> None:
    wrong = []
    options = {
        path: {
            name for each in command.get_params(CONTEXT) for name in (*each.opts, *each.secondary_opts)
        }
        for path, command in commands(GROUP)
    }
    pages = [page for pattern in PAGES for page in sorted(ROOT.glob(pattern))]
    assert len(pages) > 30
    for page in pages:
        for name, rest in SAID.findall(page.read_text("utf-8")):
            words = rest.split()
            path = f"{name} {words[0]}" if words and f"{name} {words[0]}" in options else name
            for word in words if path in options else ():
                flag = word.partition("=")[0].strip("`.,;:)(\"'")
                if not re.fullmatch(r"--?[a-z][a-z_-]+", flag) or flag in ("--help", "--debug"):
                    continue
                if options[path].isdisjoint((flag, f"-{flag}")):  # Caffe's have one dash
                    wrong.append(f"{page.relative_to(ROOT)}: {path} {flag}")
    assert wrong == []
