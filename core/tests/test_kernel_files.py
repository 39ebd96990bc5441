"""The files in which an operating system describes its machine; malformed ones read as nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import KernelFiles, listed_numbers


@given(st.frozensets(st.integers(0, 300)))
def test_lists_of_numbers_are_read_as_the_kernel_writes_them(numbers: frozenset[int]) -> None:
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    assert listed_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "0-x", "a", "1,,2", "-1", "0-3;5"])
def test_lists_that_are_malformed_are_empty(text: str) -> None:
    assert listed_numbers(text) == frozenset()


@pytest.fixture
def files(tmp_path: Path) -> KernelFiles:
    (tmp_path / "node2").mkdir()
    (tmp_path / "node10").mkdir()
    (tmp_path / "online").write_text("0-1,4\n")
    (tmp_path / "type").write_text("12 of them\n")
    (tmp_path / "meminfo").write_text(
        "Node 0 MemTotal:  16 kB\nNode 0 Inactive(file): 3 kB\nFree: x kB\n"
    )
    return KernelFiles(tmp_path)


def test_numbers_sizes_and_names_are_read(files: KernelFiles) -> None:
    assert files.text("online") == "0-1,4"
    assert files.numbers("online") == {0, 1, 4}
    assert files.number("type") == 12
    assert files.size("meminfo", "MemTotal") == 16 * 1024
    assert files.size("meminfo", "Inactive(file)") == 3 * 1024
    assert files.names("", "node*") == ["node2", "node10"]
    assert not files.own


def test_what_is_not_there_reads_as_nothing(files: KernelFiles) -> None:
    assert files.text("nowhere") == ""
    assert files.numbers("nowhere") == frozenset()
    assert files.number("meminfo") is None
    assert files.size("meminfo", "Free") is None
    assert files.size("meminfo", "Total") is None
    assert files.names("nowhere", "*") == []
