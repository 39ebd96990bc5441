"""Which plugins would serve a request but are not installed. Each plugin is a package of its own, and
one that is missing cannot say what it serves, so lists in other packages say it."""

from __future__ import annotations

import tomllib
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache

from demitasse import discover, installed

GROUP = "demitasse.served"
"""The group of entry points whose values name packages with such a list."""

FILE = "served.toml"


@cache
def served() -> dict[str, dict[str, list[str]]]:
    """Return, for each listed plugin, what it serves in some roles, as in its manifest: suffixes of
    files, kinds of samples, names of programs and commands. An empty list means anything. The lists are
    the files ``served.toml`` of the packages that entry points of the group name; none is imported."""
    found: dict[str, dict[str, list[str]]] = {}
    for package in installed(GROUP):
        with suppress(OSError, ValueError):  # a missing list only costs a hint
            found |= tomllib.loads(package.text(FILE))
    return found


def uninstalled(role: str, asked: str = "") -> str:
    """Return the end of a sentence that names the packages to install for what is ``asked`` of a role: a
    suffix, a path that ends with it, a kind, a name, or ``""`` for anything. Return "" if all listed
    packages that would serve it are installed."""
    there = {manifest.name for manifest in discover()}
    names = [
        f"demitasse-{name}"
        for name, roles in served().items()
        if name not in there and role in roles and (not asked or _fits(asked, roles[role]))
    ]
    told = "is" if len(names) == 1 else "are"
    return f"; {', '.join(names)} {told} not installed (pip install {' '.join(names)})" if names else ""


def _fits(asked: str, given: list[str]) -> bool:
    return not given or any(fnmatchcase(asked, f"*{each}" if each[0] == "." else each) for each in given)
