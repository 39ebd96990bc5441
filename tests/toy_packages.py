"""Distributions of plugins as a stranger's, put where Python looks for them."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from demitasse import Level, Machine, Manifest, discover

MACHINE = Machine("desk", (Level("machine"),), fingerprint="any")
KERNELS = """
from demitasse import hookimpl

@hookimpl
def kernels(request):
    return ()
"""

Install = Callable[..., Path]


def manifest_text(name: str, **values: Any) -> str:
    """A manifest in TOML; ``priority`` is that of its kernels, ``more`` is put after the keys."""
    lists = "".join(f"{key} = {list(values.get(key, ()))}\n" for key in ("requires", "conflicts"))
    return (
        f'name = "{name}"\napi = "{values.get("api", ">=0.1,<0.2")}"\n'
        f"automatic = {str(values.get('automatic', False)).lower()}\n{lists}{values.get('more', '')}\n"
        f"[roles.{values.get('role', 'kernels')}]\npriority = {values.get('priority', 5)}\n"
    )


@contextmanager
def installing(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, ...)`` puts a distribution with one plugin where Python looks for them,
    and the descriptions of machines that it brings, by name."""
    before = set(sys.modules)

    def put(
        name: str,
        code: str = KERNELS,
        manifest: str | None = None,
        distribution: str | None = None,
        package: str | None = None,
        describes: Mapping[str, str] | None = None,
        **values: Any,
    ) -> Path:
        package = package or f"toys_{name.replace('-', '_')}"
        distribution = distribution or f"toys-{name}"
        site = root / f"site-{distribution}"
        folder, facts = site / package, site / f"{package}-1.2.dist-info"
        folder.mkdir(parents=True)
        facts.mkdir()
        text = manifest_text(name, **values) if manifest is None else manifest
        (folder / "__init__.py").write_text("")
        (folder / "plugin.py").write_text(textwrap.dedent(code))
        (folder / "plugin.toml").write_text(text)
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.2\n")
        points = f"[demitasse.plugins]\n{name} = {package}.plugin\n"
        if describes is not None:
            points += f"[demitasse.machines]\n{name} = {package}\n"
            (folder / "machines").mkdir()
            for machine, description in describes.items():
                (folder / "machines" / f"{machine}.toml").write_text(description)
        (facts / "entry_points.txt").write_text(points)
        monkeypatch.syspath_prepend(str(site))
        return folder

    yield put
    for name in set(sys.modules) - before:
        if name.startswith("toys_"):
            del sys.modules[name]


def found(name: str) -> Manifest:
    (manifest,) = [manifest for manifest in discover() if manifest.name == name]
    return manifest
