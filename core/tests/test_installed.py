"""What is installed is looked for once, and again when something changes."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from demitasse import installed

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
