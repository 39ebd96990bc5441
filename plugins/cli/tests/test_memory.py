"""A lack of memory is reported as such, with how much there is and what to change."""

from __future__ import annotations

import pytest

from demitasse import ModelError, PluginError
from demitasse_cli import memory
from demitasse_cli.command_line import run
from demitasse_cli.main import NO_MEMORY, main


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 1 GiB, which the process has reached."""
    monkeypatch.setattr(memory, "address_space", lambda: (2**30, 2**29))
    monkeypatch.setattr(memory.KernelFiles, "size", lambda *given: 2**30 - 2**20)


LIMITED = "; a limit (ulimit -v) allows this process 1.00 GiB, and it had 1023.00 MiB: raise the limit"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (MemoryError(), "not enough memory"),
        (MemoryError("Unable to allocate 9 GiB"), "not enough memory: Unable to allocate 9 GiB"),
        (ImportError("lib.so: failed to map segment from shared object"), None),
        (RuntimeError("can't start new thread"), None),
        (OSError(12, "Cannot allocate memory"), None),
    ],
    ids=str,
)
def test_a_limit_is_named_with_how_far_it_reached(limit: None, error: Exception, words: str) -> None:
    assert memory.told(error) == (words or str(error)) + LIMITED


def test_so_it_is_where_a_library_s_words_hide_what_was_lacking(limit: None) -> None:
    try:
        try:
            raise OSError("failed to map segment from shared object")
        except OSError as lacking:
            raise PluginError("kernel: no library found") from lacking
    except PluginError as error:
        assert memory.told(error) == "kernel: no library found" + LIMITED


def test_other_errors_are_left_alone(limit: None) -> None:
    assert (
        memory.told(ModelError("net.prototxt:3: no such layer: ")) == "net.prototxt:3: no such layer: "
    )


def test_without_a_limit_what_the_system_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "address_space", lambda: None)
    monkeypatch.setattr(memory, "available_bytes", lambda: 3 * 2**20)
    told = memory.told(MemoryError("Unable to allocate 9 GiB"))
    assert told == (
        "not enough memory: Unable to allocate 9 GiB; available: 3.00 MiB; use a smaller batch "
        "or fewer workers"
    )
    known = MemoryError("host memory: asked for 9 bytes, available: 3; use a smaller batch")
    assert memory.told(known) == f"not enough memory: {known}"


def test_where_there_is_none_even_for_that_a_line_is_still_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(given: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr(f"{run.__module__}.run", full)
    assert main(["plugins"]) == 2
    assert capfd.readouterr().err == NO_MEMORY.decode()
