"""The next process knows which engines were the fastest; if it cannot, nothing else is lost."""

from __future__ import annotations

import json
import tomllib
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from cuda_on_cpu import EmulatedDriver

from demitasse import CompositionError
from demitasse_gpu.device import Device
from demitasse_gpu.libraries import remembered
from demitasse_gpu.libraries.remembered import Choices
from demitasse_gpu.options import Options


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "demitasse/gpu"


def choices(library: str = "cudnn-91900", remember: bool = True) -> Choices:
    return Choices(Device(EmulatedDriver(), remember=remember), library)


def test_the_next_process_knows_what_this_one_measured(cache: Path) -> None:
    first = choices()
    assert first.get(("a", 1)) == ""
    assert first.keep(("a", 1), "third") == "third"
    assert first.get(("a", 1)) == "third"
    first.write()
    (file,) = cache.iterdir()
    assert file.name.startswith("CUDA-on-this-CPU-cudnn-91900-")
    later = choices()
    assert later.get(("a", 1)) == "third"
    assert later.get(("a", 2)) == ""
    assert choices("cudnn-92800").get(("a", 1)) == "", "of another version"


def test_two_processes_keep_what_both_have_measured() -> None:
    one, other = choices(), choices()
    one.keep("a", "way 1")
    one.write()
    other.keep("b", "way 0")
    other.write()
    later = choices()
    assert (later.get("a"), later.get("b")) == ("way 1", "way 0")


def test_choices_are_written_soon_and_at_the_end(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = choices()
    made.keep("a", "way 1")
    assert not cache.exists()
    monkeypatch.setattr(remembered, "SOON", 0.0)
    made.keep("b", "way 1")
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setattr(remembered, "SOON", 60.0)
    made.keep("c", "way 1")
    remembered._write_last(remembered.weakref.ref(made))
    assert choices().get("c") == "way 1"


@pytest.mark.parametrize(("library", "remember"), [("", True), ("cudnn-91900", False)])
def test_nothing_is_kept_that_is_not_to_be(library: str, remember: bool, cache: Path) -> None:
    made = choices(library, remember)
    made.keep("a", "way 1")
    made.write()
    assert made.get("a") == "way 1"
    assert not cache.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", "{\"'a'\": 3}", "{\"'a'\": [5, 2]}", "{\"'a'\": null}", "\udcff"]
)
def test_a_file_that_is_spoilt_is_as_none(text: str, cache: Path) -> None:
    choices().keep("a", "way 1")
    made = choices()
    made.keep("b", "way 1")
    made.write()
    (file,) = cache.iterdir()
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    later = choices()
    assert later.get("a") == ""
    later.keep("a", "way 0")
    later.write()
    assert json.loads(file.read_text())["'a'"] == "way 0"


def test_a_folder_that_cannot_be_written_is_done_without(cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file")
    made = choices()
    made.keep("a", "way 1")
    made.write()
    assert made.get("a") == "way 1"


def test_the_manifest_lists_every_option() -> None:
    text = files("demitasse_gpu").joinpath("plugin.toml").read_text("utf-8")
    assert set(tomllib.loads(text)["options"]) == {field.name for field in fields(Options)}


def test_the_option_is_true_or_false() -> None:
    assert Options.read({"remember": False}).remember is False
    given: Any = {"remember": "no"}
    with pytest.raises(CompositionError, match=r"remember = 'no' \(valid: true, false\)"):
        Options.read(given)
