"""Which of this project's plugins would serve what is asked for, and is not installed: each is a package
of its own, and one that is not there cannot say of itself what it serves."""

from __future__ import annotations

import pkgutil
import tomllib
from fnmatch import fnmatchcase
from functools import cache

from demitasse import discover


@cache
def served() -> dict[str, dict[str, list[str]]]:
    """Of each of this project's plugins what it serves in some roles, as its manifest says: suffixes of
    files, kinds of samples, names of programs and commands. An empty list stands for anything."""
    try:
        text = pkgutil.get_data("demitasse_descriptions", "served.toml")  # also in a zip file
    except OSError:  # of a program that was packed without it, which can install nothing
        return {}
    return tomllib.loads((text or b"").decode())


def uninstalled(role: str, asked: str = "") -> str:
    """The end of a sentence that names the packages to install for what is ``asked`` of a role (a
    suffix, a path that ends with it, a kind, a name; ``""``: whatever it is), "" if all of this
    project's that would serve it are there."""
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
