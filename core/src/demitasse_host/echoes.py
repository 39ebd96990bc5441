"""What a file says, as errors say it."""

MOST = 100
"""Characters of it in a line."""


def shortened(value: object, most: int = MOST, *, quoted: bool = False) -> str:
    """A value as text (``quoted``: as Python writes it), or the beginning of that where it is longer
    than ``most``: what is read from a damaged file may be as long as the file."""
    try:
        text = repr(value) if quoted else str(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
