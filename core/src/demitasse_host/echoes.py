"""Text from files, made safe and short for error messages."""

import re

MOST = 100
"""Characters of it in a line."""

_OBEYED = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]|(?<!^)\r(?!\n|\Z)")
"""Control characters but tabs and the ends of lines, and what turns the direction of writing. (A
carriage return before or behind all else is a line of progress that is written over.)"""


def printable(text: str) -> str:
    """Text with an escape for each character that a terminal would obey instead of showing it: a name in
    a stranger's file could otherwise clear the screen, or hide what stands before it."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shortened(value: object, most: int = MOST, *, quoted: bool = False) -> str:
    """A value as text (``quoted``: as Python writes it), cut off after ``most`` characters: what is read
    from a damaged file may be as long as the file."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
