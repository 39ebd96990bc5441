"""The files in which Linux describes its machine, below a root: lists of numbers, sizes, texts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class KernelFiles:
    """Reads below ``root``; what is absent, unreadable or malformed reads as nothing."""

    root: Path = Path("/")

    @property
    def own(self) -> bool:
        """True when these are the files of the running machine."""
        return self.root == Path("/")

    def text(self, path: str) -> str:
        """The content of a file, stripped."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """The whole number that a file begins with."""
        match = re.match(r"-?\d+", self.text(path))
        return int(match[0]) if match else None

    def list(self, path: str) -> frozenset[int]:
        """The numbers that a file lists: ``0-3,8`` is 0, 1, 2, 3, 8."""
        return listed(self.text(path))

    def bytes(self, path: str, key: str) -> int | None:
        """Bytes from a line ``key:  1024 kB``, whatever stands in front of the key."""
        match = re.search(rf"(?m)(?:^|\s){re.escape(key)}:\s*(\d+) kB", self.text(path))
        return int(match[1]) * 1024 if match else None

    def folders(self, folder: str, stem: str) -> tuple[int, ...]:
        """The numbers N of the folders ``stem<N>`` in a folder, in order."""
        try:
            names = [path.name for path in (self.root / folder).iterdir()]
        except OSError:
            return ()
        found = (re.fullmatch(rf"{re.escape(stem)}(\d+)", name) for name in names)
        return tuple(sorted(int(match[1]) for match in found if match))


def listed(text: str) -> frozenset[int]:
    """The numbers of a list such as ``0-3,8``; none when it is malformed."""
    numbers: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", part)
        if match is None:
            return frozenset()
        numbers.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(numbers)


def shortened(numbers: frozenset[int]) -> str:
    """The list that a kernel would write: 0, 1, 2, 3, 8 is ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in runs) or "none"
