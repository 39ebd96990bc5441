"""Machines that are known by name: the descriptions that installed packages bring."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from demitasse import DescriptionError, installed, is_there, nearest, nearest_path, uninstalled, unknown

GROUP = "demitasse.machines"
"""The group of entry points whose values name packages that bring descriptions."""

FOLDER = "machines"
"""The folder of such a package that its descriptions are in, one TOML file a machine."""


@dataclass(frozen=True)
class DescribedMachine:
    """A description that a package brings: ``--hw NAME`` reads it."""

    name: str
    path: Path
    distribution: str


def described_machines() -> dict[str, DescribedMachine]:
    """By name, in alphabetical order: each ``machines/NAME.toml`` of the packages that entry points of
    the group ``demitasse.machines`` name, none of them imported. Of two with one name the first package
    by its entry point's name counts."""
    found: dict[str, DescribedMachine] = {}
    for package in installed(GROUP):
        folder = package.folder / FOLDER if package.folder is not None else None
        for path in folder.glob("*.toml") if folder is not None and folder.is_dir() else ():
            found.setdefault(path.stem, DescribedMachine(path.stem, path, package.distribution))
    return {name: found[name] for name in sorted(found)}


def find_machine(hw: str | Path) -> Path:
    """The file of a description: ``hw`` itself where it is there, else that of a machine known by this
    name. Raises DescriptionError that names the nearest."""
    path = Path(hw)
    if is_there(path):
        return path
    known = described_machines()
    if str(hw) in known:
        return known[str(hw)].path
    hint = nearest_path(path)
    if str(hw) == path.stem and not hint:
        told = unknown("machine", str(hw), ["auto", *known], rest="which 'demitasse machines' lists")
        raise DescriptionError(f"{told}, or a description's path{uninstalled('commands', 'machines')}")
    if not hint and (close := nearest(path.stem, known)):
        hint = f"; did you mean the machine {close!r}?"
    raise DescriptionError(f"{path}: No such file or directory{hint}")
