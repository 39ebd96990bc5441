"""Metadata, as an installation would write it, for packages of a checkout that are not installed. With
it, plugins are found by their names, and the command line runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def sources(root: Path) -> list[Path]:
    """Return the folders of the checkout at ``root`` that contain its packages."""
    return [path.parent / "src" for path in _projects(root)]


def described(root: Path, folder: Path) -> None:
    """Write into ``folder`` the metadata of distributions that are not installed. Put it on the path
    after their ``sources``."""
    for path in _projects(root):
        about = tomllib.loads(path.read_text("utf-8"))["project"]
        if _is_installed(about["name"]):
            continue
        made = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
        made.mkdir()
        head = f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
        needs = (f"Requires-Dist: {need}\n" for need in about.get("dependencies", ()))
        (made / "METADATA").write_text(head + "".join(needs), encoding="utf-8")
        groups = {"console_scripts": about.get("scripts", {}), **about.get("entry-points", {})}
        (made / "entry_points.txt").write_text("".join(_lines(groups)), encoding="utf-8")


def _projects(root: Path) -> list[Path]:
    return [root / "core/pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _lines(groups: dict[str, dict[str, str]]) -> Iterator[str]:
    for group, entries in groups.items():
        yield f"[{group}]\n"
        yield from (f"{name} = {place}\n" for name, place in entries.items())
