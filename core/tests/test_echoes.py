"""Errors are readable lines, whatever a file contains."""

from __future__ import annotations

import pytest

from demitasse import printable, shortened


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("short", "short"),
        (b"\0" * 3, r"b'\x00\x00\x00'"),
        ("x" * 5000, "x" * 100 + "... (5,000 characters)"),
        ((7,) * 1000, "(" + "7, " * 33 + "... (3,000 characters)"),
        (10**5000, "a number of thousands of digits"),
    ],
    ids=["short", "bytes", "text", "a shape", "a number"],
)
def test_what_is_long_is_shortened(value: object, told: str) -> None:
    assert shortened(value) == told


def test_quoted_it_is_as_python_writes_it() -> None:
    assert shortened("a\n", quoted=True) == r"'a\n'"
    assert shortened("x" * 5000, quoted=True) == f"'{'x' * 99}... (5,002 characters)"
    assert shortened([10**5000], quoted=True) == "a number of thousands of digits"


def test_as_much_is_shown_as_is_asked() -> None:
    assert shortened("abcdef", 3) == "abc... (6 characters)"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("conv1 \u00fc \u4e2d\n\tx\r\n", "conv1 \u00fc \u4e2d\n\tx\r\n"),
        ("\r50 of 100\r", "\r50 of 100\r"),
        ("\x1b[2J\x1b]0;mine\a", r"\x1b[2J\x1b]0;mine\x07"),
        ("bad\rgood", r"bad\rgood"),
        ("\x9b31m\0\x7f", r"\x9b31m\x00\x7f"),
        ("\u202egpj.exe\u2066", r"\u202egpj.exe\u2066"),
    ],
    ids=["text", "progress", "escapes", "return", "controls", "directions"],
)
def test_what_a_terminal_would_obey_is_shown(text: str, told: str) -> None:
    assert printable(text) == told
    assert printable(told) == told
