"""Text from files, made safe and short for error messages."""

import re

MOST = 100
"""The most characters that a line shows of such a text."""

_OBEYED = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|(?<!^)\r(?!\n|\Z)")
"""Control characters except tabs and line ends, and characters that change the direction of writing. (A
carriage return at the beginning or the end is a progress line that overwrites itself.)"""


def printable(text: str) -> str:
    """Return the text with an escape for each character that a terminal would obey instead of showing.
    Otherwise a name in a stranger's file could clear the screen, or hide the text before it."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shortened(value: object, most: int = MOST, *, quoted: bool = False) -> str:
    """Return a value as text (``quoted``: as Python writes it), cut off after ``most`` characters. A
    value from a damaged file may be as long as the file."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
