"""The files in which the operating system's kernel describes its machine (/proc, /sys, /dev)."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KernelFiles:
    """Reads files below ``root``; absent, unreadable or malformed files read as nothing."""

    root: Path = Path("/")

    @property
    def own(self) -> bool:
        """True when these are the files of the running machine."""
        return self.root == Path("/")

    def text(self, path: str) -> str:
        """Return the content of a file, stripped."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return the whole number with which a file begins, or None."""
        match = re.match(r"-?\d+", self.text(path))
        return int(match[0]) if match else None

    def numbers(self, path: str) -> frozenset[int]:
        """Return the list of numbers in a file: ``0-3,8`` is 0, 1, 2, 3, 8."""
        return listed_numbers(self.text(path))

    def size(self, path: str, key: str) -> int | None:
        """Return the bytes that a line ``key:  1024 kB`` states, whatever precedes the key."""
        match = re.search(rf"(?m)(?:^|\s){re.escape(key)}:\s*(\d+) kB", self.text(path))
        return int(match[1]) * 1024 if match else None

    def names(self, folder: str, pattern: str) -> list[str]:
        """Return the matching paths below ``folder``, sorted by the numbers in them."""
        try:
            found = [path.relative_to(self.root) for path in (self.root / folder).glob(pattern)]
        except OSError:
            return []
        return sorted(map(str, found), key=lambda n: [int(i) for i in re.findall(r"\d+", n)])


def listed_numbers(text: str) -> frozenset[int]:
    """Return the numbers in a list in the kernel's format (``0-3,8``); none if it is malformed."""
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            return frozenset()
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(numbers)
