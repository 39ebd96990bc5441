"""A net that does not fit is rejected before any of its memory is used."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import demitasse
from demitasse import HostMemory, PlanError, PluginError, zeroed
from demitasse_training.memory_check import check_room


class Small:
    """An allocator of a hundred bytes at once, which forgets blocks, as a system with lazy allocation
    does."""

    given = nbytes = 0

    def allocate(self, nbytes: int) -> Small:
        if nbytes > 100:
            raise MemoryError(f"asked for {nbytes} bytes")
        self.given += nbytes
        self.nbytes = nbytes
        return self

    def view(self, *given: Any) -> Any:
        """Do nothing: nobody reads the memory."""
        return zeroed(1)

    def close(self) -> None:
        self.given = 0


def test_parts_that_fit_alone_but_not_together_are_told_with_their_sizes() -> None:
    small = Small()
    check_room(small, {"parameters": 60, "state": 40}, "net.prototxt")  # type: ignore[arg-type]
    assert small.given == 0
    with pytest.raises(
        PlanError, match=r"net\.prototxt: the net does not fit \(parameters 0 MiB, state"
    ):
        check_room(small, {"parameters": 60, "state": 60}, "net.prototxt")  # type: ignore[arg-type]


def seen(*given: Any) -> Any:
    return zeroed(1)


def block(nbytes: int, **given: Any) -> SimpleNamespace:
    return SimpleNamespace(**{"nbytes": nbytes, "view": seen, "close": list, **given})


class Parted:
    """An allocator of two hundred bytes, whose blocks have at most a hundred."""

    largest, left = 100, 200

    def allocate(self, nbytes: int) -> SimpleNamespace:
        if nbytes > min(self.largest, self.left):
            raise MemoryError(f"asked for {nbytes} bytes of {self.left}")
        self.left -= nbytes
        return SimpleNamespace(nbytes=nbytes, view=seen, close=lambda: self._take_back(nbytes))

    def _take_back(self, nbytes: int) -> None:
        self.left += nbytes


def test_parts_are_asked_for_together_where_one_block_cannot_be_so_large() -> None:
    parted: Any = Parted()
    check_room(parted, {"parameters": 90, "their gradients": 0, "state": 100}, "net.prototxt")
    assert parted.left == 200
    for needed in ({"parameters": 101}, {"parameters": 90, "state": 90, "samples": 30}):
        with pytest.raises(PlanError, match="the net does not fit"):
            check_room(parted, needed, "net.prototxt")
        assert parted.left == 200


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            lambda nbytes: None,
            "allocate returned None, without nbytes and view and close; 8 bytes were asked",
        ),
        (lambda nbytes: HostMemory(zeroed(4)), ", of 4 bytes; 8 bytes were asked for"),
        (lambda: None, "raised TypeError in allocate: "),
        (lambda nbytes: {}["npu"], "raised KeyError in allocate: 'npu'"),
        (
            lambda nbytes: block(nbytes, view=lambda *given: None),
            "view returned None, without shape and dtype and nbytes (valid: an array)",
        ),
        (lambda nbytes: block(nbytes, view=lambda: None), "raised TypeError in view: "),
        (lambda nbytes: block(nbytes, close=lambda: {}["npu"]), "raised KeyError in close: 'npu'"),
    ],
)
def test_an_allocator_that_gives_no_such_block_is_named(given: Any, told: str) -> None:
    with pytest.raises(PluginError) as caught:
        check_room(SimpleNamespace(allocate=given), {"parameters": 8}, "net.prototxt")  # type: ignore[arg-type]
    words = str(caught.value)
    assert "SimpleNamespace of types: " in words
    assert words.startswith("net.prototxt: ") or "in close" in words
    assert told in words


def test_a_batch_beyond_the_machine_is_an_error_of_ours_with_the_files_name(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(
        'name: "wide" layer { name: "data" type: "Input" top: "data" '
        "input_param { shape { dim: 2 dim: 1000000000 } } }\n"
        + "".join(
            f'layer {{ name: "s{n}" type: "Sigmoid" bottom: "data" top: "s{n}" }}\n' for n in range(40)
        )
    )
    with demitasse.compose() as runtime, pytest.raises(PlanError, match=r"net\.prototxt.*does not fit"):
        runtime.net(path)
