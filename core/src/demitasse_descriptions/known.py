"""Machines that are known by name: the descriptions in installed packages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from demitasse import DescriptionError, installed, is_there, nearest, nearest_path, uninstalled, unknown

GROUP = "demitasse.machines"
"""The group of entry points whose values name packages with descriptions."""

FOLDER = "machines"
"""The folder in such a package that has the descriptions, one TOML file per machine."""


@dataclass(frozen=True)
class DescribedMachine:
    """A description in an installed package; ``--hw NAME`` reads it."""

    name: str
    path: Path
    distribution: str


def described_machines() -> dict[str, DescribedMachine]:
    """Return the descriptions by name, in alphabetical order: each ``machines/NAME.toml`` of the
    packages that entry points of the group ``demitasse.machines`` name. No package is imported. If two
    have the same name, the package whose entry point's name sorts first wins."""
    found: dict[str, DescribedMachine] = {}
    for package in installed(GROUP):
        folder = package.folder / FOLDER if package.folder is not None else None
        for path in folder.glob("*.toml") if folder is not None and folder.is_dir() else ():
            found.setdefault(path.stem, DescribedMachine(path.stem, path, package.distribution))
    return {name: found[name] for name in sorted(found)}


def find_machine(hw: str | Path) -> Path:
    """Return the file of a description: ``hw`` itself if it exists, otherwise that of the machine known
    by this name. Raises DescriptionError that suggests the nearest name."""
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
    raise DescriptionError(f"no such file: {path}{hint}")
