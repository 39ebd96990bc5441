"""The owner of an error: the plugin in whose package the failed object is defined."""

from __future__ import annotations

import signal
import sys
from collections import OrderedDict
from textwrap import dedent
from threading import BrokenBarrierError
from typing import Any

import pytest

import demitasse
from demitasse import DataError, PluginError, blamed, whose


class Desk:
    """An object of some package."""


def test_what_an_installed_plugin_defines_is_told_by_its_name() -> None:
    made = demitasse.compose(plugins=["reference"]).allocator("host")
    assert whose(made) == f"plugin 'reference', {type(made).__qualname__}"
    assert whose(type(made)) == whose(made)


@pytest.mark.parametrize(
    ("thing", "told"),
    [
        (Desk(), "Desk of "),
        (Desk, "Desk of "),
        (dedent, "dedent of textwrap"),
        (OrderedDict(), "OrderedDict of "),
    ],
)
def test_what_none_defines_is_told_by_its_own(thing: Any, told: str) -> None:
    assert whose(thing).startswith(told)


def test_an_error_is_told_in_a_line_with_its_cause() -> None:
    with pytest.raises(PluginError) as caught, blamed("plugin 'desk'", "at work", "layer 'x'"):
        raise KeyError("a\nb")
    assert str(caught.value) == "layer 'x': plugin 'desk': raised KeyError at work: 'a\\nb'"
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize(
    "error", [DataError("no samples"), BrokenBarrierError(), MemoryError("none"), OSError("mine")]
)
def test_some_pass_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, blamed(Desk(), "at work", but=OSError):
        raise error
    assert caught.value is error


def test_the_innermost_place_in_the_code_that_was_called_is_told() -> None:
    """The message names neither the code that this calls nor its caller."""
    table = {"__name__": "toys_desk.drawers"}
    code = "import json\ndef draw():\n    return pull('{')\ndef pull(text):\n    json.loads(text)\n"
    exec(compile(code, "/site/toys_desk/drawers.py", "exec"), table)
    draw: Any = table["draw"]
    with pytest.raises(PluginError) as caught, blamed("plugin 'desk'", "at work"):
        draw()
    words = "plugin 'desk': raised JSONDecodeError at work: Expecting property name"
    assert str(caught.value).startswith(words)
    assert str(caught.value).endswith(" (toys_desk/drawers.py:5)")


def test_what_a_handler_of_signals_raises_is_nobodys() -> None:
    def interrupt(number: int, frame: Any) -> None:
        raise TimeoutError("enough")

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(TimeoutError, match="enough"), blamed(Desk(), "at work"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_who_would_end_the_program_is_named() -> None:
    told = r"Desk of .*: raised SystemExit at work: no licence$"
    with pytest.raises(PluginError, match=told), blamed(Desk(), "at work"):
        sys.exit("no licence")


def test_a_handler_of_signals_may_end_the_program() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *given: sys.exit(3))
    try:
        with pytest.raises(SystemExit), blamed(Desk(), "at work"):
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
