"""Installed packages are looked up once, and again when something changes."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import demitasse
from demitasse import installed
from demitasse_descriptions import unserved

GROUP = "demitasse.test_things"


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(name: str, version: str = "1.2", folder: bool = True) -> None:
        if folder:
            (tmp_path / f"{name}_package").mkdir(exist_ok=True)
            (tmp_path / f"{name}_package" / "__init__.py").write_text("raise RuntimeError('imported')\n")
        facts = tmp_path / f"{name}-{version}.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: the-{name}\nVersion: {version}\n")
        (facts / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}_package.inner\n")

    return put


def test_it_is_told_by_name_and_nothing_is_imported(put: Callable[..., None], tmp_path: Path) -> None:
    put("lamp")
    put("bed", "3")
    bed, lamp = installed(GROUP)
    assert (bed.name, bed.distribution, bed.version) == ("bed", "the-bed", "3")
    assert (lamp.module, lamp.folder) == ("lamp_package.inner", tmp_path / "lamp_package")
    assert "lamp_package" not in sys.modules


def test_it_is_looked_for_once(put: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    put("lamp")
    before = installed(GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: pytest.fail("looked again"))
    assert installed(GROUP) is before


def test_what_is_installed_meanwhile_is_seen(put: Callable[..., None], tmp_path: Path) -> None:
    put("lamp")
    assert [each.name for each in installed(GROUP)] == ["lamp"]
    put("bed")
    assert [each.name for each in installed(GROUP)] == ["bed", "lamp"]
    (tmp_path / "lamp-1.2.dist-info").rename(tmp_path / "gone")
    assert [each.name for each in installed(GROUP)] == ["bed"]


def test_another_path_has_other_things(
    put: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    put("lamp")
    assert installed(GROUP)
    monkeypatch.setattr(sys, "path", sys.path[1:])
    assert installed(GROUP) == ()


def test_a_package_that_is_not_there_has_no_folder(put: Callable[..., None]) -> None:
    put("lamp", folder=False)
    (lamp,) = installed(GROUP)
    assert (lamp.distribution, lamp.folder) == ("the-lamp", None)


def test_a_program_in_a_zip_file_has_its_plugins(tmp_path: Path) -> None:
    """Everything that is imported from this project is in one file, as in a zipped application,
    including the list of public names and the manifest of a plugin."""
    packed = tmp_path / "app.zip"
    with zipfile.ZipFile(packed, "w") as app:
        for package in (Path(demitasse.__file__).parents[1]).glob("demitasse*/"):
            for file in package.rglob("*.py*"):
                if file.suffix in (".py", ".pyi"):
                    app.write(file, file.relative_to(package.parent))
        app.writestr("lamp_package/__init__.py", "")
        app.writestr("lamp_package/plugin.py", "")
        app.writestr("lamp_package/plugin.toml", 'name = "lamp"\napi = ">=0"\nsummary = "Gives light"\n')
        app.writestr("lamp-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: lamp\nVersion: 1.2\n")
        app.writestr(
            "lamp-1.2.dist-info/entry_points.txt", "[demitasse.plugins]\nlamp = lamp_package.plugin\n"
        )
    program = (
        f"import sys; sys.path.insert(0, {str(packed)!r}); import demitasse; print(demitasse.__file__);"
        "print(*((m.summary, m.problem) for m in demitasse.discover() if m.name == 'lamp'))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert told.startswith(str(packed))
    assert "('Gives light', '')" in told


def test_who_has_installed_the_core_alone_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(unserved, "discover", lambda: ())
    told = unserved.unoffered("trainer", ())
    assert told.endswith('no installed plugin offers any; pip install "demitasse[standard]"')
