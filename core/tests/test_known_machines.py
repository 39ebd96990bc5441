"""Machines by name: descriptions in installed packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_packages import KERNELS, Install, installing

from demitasse import DescriptionError, compose, described_machines, find_machine, load_machine

FLOOR = 'schema = 1\nname = "floor"\n[[level]]\nname = "desk"\ncores = 3\n'
OTHER = FLOOR.replace("floor", "other")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    with installing(tmp_path, monkeypatch) as put:
        yield put


def test_a_package_brings_machines_and_is_not_imported(install: Install) -> None:
    broken = KERNELS + "\nraise RuntimeError"
    folder = install("shop", code=broken, describes={"shop-floor": FLOOR, "other": OTHER})
    known = described_machines()
    assert known["shop-floor"].path == folder / "machines" / "shop-floor.toml"
    assert known["shop-floor"].distribution == "toys-shop"
    assert load_machine("shop-floor").level("desk").cores == 3
    assert not [name for name in sys.modules if name.startswith("toys_shop")]
    with compose("other", plugins=["reference"]) as runtime:
        assert runtime.machine.name == "other"


def test_a_file_of_that_name_comes_first(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("shop", describes={"shop-floor": FLOOR})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop-floor").write_text(OTHER)
    assert load_machine("shop-floor").name == "other"


def test_of_two_with_one_name_that_of_the_first_package_counts(install: Install) -> None:
    install("zebra", describes={"floor": OTHER})
    install("ape", describes={"floor": FLOOR})
    assert described_machines()["floor"].distribution == "toys-ape"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("shop-flor", r"unknown machine 'shop-flor'; did you mean 'shop-floor'\? \(valid: .*\), or a "),
        ("xyz", r"unknown machine 'xyz' \(valid: .*auto.*\), or a description's path$"),
        (
            "shop-floor.toml",
            r"no such file: .*shop-floor.toml; did you mean the machine 'shop-fl",
        ),
        ("no/shop-floor", r"no such file: no/shop-floor; there is no folder 'no'$"),
        ("mine", r"no such file: mine; did you mean 'mine.toml'\?$"),
        ("", r"no such file: |is a folder"),
    ],
)
def test_what_is_neither_is_told_with_the_nearest(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, told: str
) -> None:
    install("shop", describes={"shop-floor": FLOOR})
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.toml").write_text(FLOOR)
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(DescriptionError) as caught:
        load_machine(asked)
    assert re.search(told, str(caught.value)), caught.value


def test_a_package_that_is_not_there_or_has_no_folder_is_passed_over(install: Install) -> None:
    folder = install("shop", describes={"shop-floor": FLOOR})
    (folder / "machines" / "shop-floor.toml").unlink()
    (folder / "machines").rmdir()
    assert "shop-floor" not in described_machines()
    with pytest.raises(DescriptionError, match="unknown machine 'shop-floor'"):
        find_machine("shop-floor")
