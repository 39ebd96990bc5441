"""Reports: JSON that every reader supports, files written as a whole, and aligned tables."""

from __future__ import annotations

import errno
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import write_json, write_text
from demitasse_cli.report import human_bytes, human_time, layer_name, replaced, scores_text, table

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_plain_values_come_back(value: Any) -> None:
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        write_json("-", value)
    assert json.loads(out.getvalue()) == value


def test_what_json_lacks_becomes_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.json"
    write_json(
        str(path),
        {
            "nan": math.nan,
            "inf": [np.float32("inf")],
            "array": np.arange(3, dtype=np.int64),
            "path": Path("a/b"),
            "pair": (1, 2),
        },
    )
    assert json.loads(path.read_text()) == {
        "nan": None,
        "inf": [None],
        "array": [0, 1, 2],
        "path": "a/b",
        "pair": [1, 2],
    }


def test_a_file_is_replaced_whole_or_left(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    write_text(path, "before")
    with pytest.raises(ValueError, match="half"), replaced(path) as partial:
        partial.write_text("half of it")
        raise ValueError("half")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@given(st.lists(st.tuples(st.text("abc é", max_size=9), st.integers()), max_size=5))
def test_a_table_s_numbers_end_in_one_column(rows: list[tuple[str, int]]) -> None:
    lines = table(("name", "number"), rows, right="<>").splitlines()
    assert len(lines) == len(rows) + 1
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00:00"), (59.6, "0:01:00"), (131, "0:02:11"), (90061, "25:01:01"), (math.inf, "-")],
)
def test_times_read_well(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**20 // 2, "1.50 MiB"),
        (2**41, "2048.00 GiB"),
    ],
)
def test_sizes_read_well(count: int, text: str) -> None:
    assert human_bytes(count) == text


def test_scores_are_named_and_arrays_averaged() -> None:
    scores = {"accuracy": 0.98765, "per_class": np.array([0.5, 1.0]), "list": [0.25, 0.75]}
    assert scores_text(scores) == "accuracy 0.9877  per_class 0.7500  list 0.5000"


def test_a_full_disk_is_told_with_the_file_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "replace", full)
    path = tmp_path / "r.json"
    with pytest.raises(OSError, match=r"could not be written: No space left on device$") as caught:
        write_text(path, "{}")
    assert str(caught.value).startswith(f"{path} ")
    assert list(tmp_path.iterdir()) == []


def test_long_names_of_layers_keep_their_beginning_and_end() -> None:
    """So that a table of a net whose names are long still fits on lines."""
    assert layer_name("n" * 60) == "n" * 60
    assert layer_name("a" * 50 + "b" * 50) == "a" * 20 + "..." + "b" * 37
