"""Frames of videos: which are read, that they are cut alike, and what a list must contain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import DataError
from demitasse_datasets.annotated.draws import Draws
from demitasse_datasets.clips import Cut, Frames

cv2 = pytest.importorskip("cv2", reason="OpenCV 4 is not installed (opencv-python-headless<5)")

Read = Callable[..., tuple[np.ndarray, np.ndarray]]
ROWS, COLUMNS = 12, 16


def frame(video: int, number: int) -> np.ndarray:
    """Return an image that encodes its row and column, its number and its video (blue, green, red)."""
    down, across = np.mgrid[0:ROWS, 0:COLUMNS]
    return np.stack([down * 16 + across, np.full_like(down, number), np.full_like(down, video)], -1)


@pytest.fixture
def folders(tmp_path: Path) -> Callable[..., Path]:
    """Write a list of videos: each is a folder of so many frames, with a number and a label per line."""

    def folders(*lines: str, frames: int = 20, pattern: str = "%06d.png") -> Path:
        for video in range(3):
            folder = tmp_path / f"v{video}"
            folder.mkdir(exist_ok=True)
            for number in range(1, frames + 1):
                cv2.imwrite(str(folder / (pattern % number)), frame(video, number))
        (tmp_path / "list.txt").write_text("\n".join(lines))
        return tmp_path / "list.txt"

    return folders


@pytest.fixture
def read(opened: Callable[..., Any], some: Callable[..., Any]) -> Read:
    """Return the first samples of a list, read with some options."""

    def read(path: Path, count: int, first: int = 0, **options: Any) -> Any:
        given = {"pattern": "%06d.png", "stream": 3, **options}
        out = some(opened(str(path), "clips", seed=5, options=given), first, count)
        return out["data"], out["label"]

    return read


def numbers(data: np.ndarray) -> list[list[int]]:
    """Return which frames samples (channels, frames, rows, columns) have."""
    return [each[1, :, 0, 0].tolist() for each in data]


def test_frames_are_read_from_where_the_list_says(folders: Any, read: Read) -> None:
    path = folders("v0 1 7", "v2 5 3", "v1 3 9")
    data, label = read(path, 3, length=4, every=3)
    assert data.shape == (3, 3, 4, ROWS, COLUMNS) and data.dtype == np.uint8
    assert label.tolist() == [7, 3, 9]
    assert numbers(data) == [[1, 4, 7, 10], [5, 8, 11, 14], [3, 6, 9, 12]]
    expected = [frame(2, number).transpose(2, 0, 1) for number in (5, 8, 11, 14)]
    np.testing.assert_array_equal(data[1], np.stack(expected, 1))


def test_frames_from_anywhere_are_consecutive_and_the_same_for_any_division(
    folders: Any, read: Read
) -> None:
    path = folders(*[f"v{number % 3} 20 {number}" for number in range(30)])
    how = {"length": 3, "every": 2, "start": "anywhere"}
    data, _ = read(path, 30, random=True, **how)
    begins = [first for first, *_ in numbers(data)]
    assert numbers(data) == [[first, first + 2, first + 4] for first in begins]
    assert min(begins) >= 1 and max(begins) <= 15 and len({*begins}) > 7
    halves = [read(path, 15, first, random=True, **how)[0] for first in (0, 15)]
    np.testing.assert_array_equal(np.concatenate(halves), data)
    assert numbers(read(path, 2, **how)[0]) == [[1, 3, 5]] * 2


def test_a_snippet_of_each_part_is_in_it_and_in_tests_in_its_middle(folders: Any, read: Read) -> None:
    path = folders(*[f"v{number % 3} 19 {number}" for number in range(30)])
    how = {"length": 2, "start": "parts", "parts": 3, "stacked": True}
    data, _ = read(path, 1, **how)
    assert data.shape == (1, 3 * 2 * 3, ROWS, COLUMNS)
    # 19 // 3 = 6 frames per part, 4 to spare: (4 + 1) // 2 before the snippet.
    assert data[0, 1::3, 0, 0].tolist() == [3, 4, 9, 10, 15, 16]
    drawn, _ = read(path, 30, random=True, **how)
    for sample in drawn[:, 1::3, 0, 0].astype(int):
        assert np.all(sample[1::2] == sample[::2] + 1)
        assert np.all((sample[::2] - 1) // 6 == range(3)) and np.all((sample[1::2] - 1) // 6 == range(3))
    assert len({*drawn[:, 1, 0, 0].tolist()}) > 3


def test_parts_shorter_than_a_snippet_are_all_the_beginning(folders: Any, read: Read) -> None:
    path = folders("v0 5 1")
    data, _ = read(path, 1, length=3, start="parts", parts=3, stacked=True, random=True)
    assert data[0, 1::3, 0, 0].tolist() == [1, 2, 3] * 3


@settings(max_examples=examples(60))
@given(
    st.integers(1, 400),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 5),
    st.booleans(),
    st.sampled_from(["anywhere", "parts"]),
)
def test_no_frame_is_asked_for_that_is_not_there(
    count: int, length: int, parts: int, every: int, random: bool, start: str
) -> None:
    frames = Frames(length, every, start, parts, random)
    if count < length * every:
        with pytest.raises(DataError, match=f"it has {count} frames"):
            frames.numbers(count, Draws(1, 2, 3, parts))
        return
    asked = frames.numbers(count, Draws(1, 2, 3, parts))
    assert len(asked) == length * (parts if start == "parts" else 1)
    assert min(asked) >= 1 and max(asked) <= count


def test_all_frames_of_a_sample_are_cut_and_mirrored_alike(folders: Any, read: Read) -> None:
    path = folders(*["v0 1 0"] * 40)
    data, _ = read(path, 40, length=3, crop=8, random=True, mirror=True)
    assert data.shape == (40, 3, 3, 8, 8)
    whole = frame(0, 1)[..., 0]
    seen = Counter()
    for sample in data[:, 0].astype(int):
        assert np.all(sample == sample[0])
        mirrored = bool(sample[0, 0, 1] < sample[0, 0, 0])
        part = sample[0][:, ::-1] if mirrored else sample[0]
        top, left = divmod(int(part[0, 0]), 16)
        np.testing.assert_array_equal(part, whole[top : top + 8, left : left + 8])
        seen[top, left, mirrored] += 1
    assert {top for top, _, _ in seen} == {*range(5)} and len({left for _, left, _ in seen}) > 5
    assert 8 < sum(count for (*_, mirrored), count in seen.items() if mirrored) < 32
    middle, _ = read(path, 1, length=3, crop=8)
    np.testing.assert_array_equal(middle[0, 0, 0], whole[2:10, 4:12])


@pytest.mark.parametrize("places", [5, 13])
def test_fixed_places_are_corners_and_the_middle_and_between(
    places: int, folders: Any, read: Read
) -> None:
    path = folders(*["v0 1 0"] * 120)
    data, _ = read(path, 120, length=1, crop=4, random=True, places=places)
    corners = {divmod(int(each[0, 0, 0, 0]), 16) for each in data}
    # 8 rows and 12 columns are left over: quarters are 2 and 3.
    expected = {(0, 0), (0, 12), (8, 0), (8, 12), (4, 6)}
    if places == 13:
        expected |= {(0, 6), (8, 6), (4, 0), (4, 12), (2, 3), (2, 9), (6, 3), (6, 9)}
    assert corners == expected


def test_a_part_of_another_size_is_resized_to_the_crops(folders: Any, read: Read) -> None:
    path = folders(*["v0 1 0"] * 60)
    data, _ = read(path, 60, length=1, crop=8, random=True, places=5, scales=(1.0, 0.5))
    whole, sides = frame(0, 1).astype(np.uint8), Counter()
    for sample in data[:, :, 0]:
        # A side of 6 is within 3 of the crop's 8, and so becomes 8; the other side has 12 pixels.
        for rows, columns in ((12, 12), (12, 8), (8, 12), (8, 8)):
            for down, across in ((0, 0), (0, 4), (4, 0), (4, 4), (2, 2)):
                top, left = down * ((12 - rows) // 4), across * ((16 - columns) // 4)
                part = whole[top : top + rows, left : left + columns]
                if np.array_equal(cv2.resize(part, (8, 8)), sample.transpose(1, 2, 0)):
                    sides[rows, columns] += 1
                    break
            else:
                continue
            break
    assert sides.total() == 60 and len(sides) == 4
    near, _ = read(path, 60, length=1, crop=8, random=True, scales=(1.0, 0.5), distortion=0)
    steps = {tuple(np.sign(np.diff(each[0, 0, 0, :3].astype(int)))) for each in near}
    assert steps == {(1, 1)}


@settings(max_examples=examples(60))
@given(st.integers(8, 40), st.integers(8, 40), st.integers(1, 8), st.integers(0, 99))
def test_a_cut_is_always_a_square_of_its_size(height: int, width: int, size: int, seed: int) -> None:
    frames = np.zeros((2, height, width, 3), np.uint8)
    for places in (0, 13):
        for scales in ((), (1.0, 0.66)):
            cut = Cut(size, random=True, mirror=True, places=places, scales=scales)
            assert cut(frames, Draws(seed, 0, 1)).shape == (2, size, size, 3)


def test_optical_flow_has_two_channels_and_turns_round_where_it_is_mirrored(
    folders: Any, read: Read, tmp_path: Path
) -> None:
    path = folders(*["v0 6 4"] * 20)
    for number in range(1, 7):
        for axis, value in (("x", 100 + number), ("y", 200 + number)):
            flow = np.full((ROWS, COLUMNS), value, np.uint8)
            flow[:, : COLUMNS // 2] -= 50
            cv2.imwrite(str(tmp_path / "v0" / f"flow_{axis}_{number:04d}.png"), flow)
    how = {"pattern": "flow_%c_%04d.png", "length": 2, "start": "parts", "parts": 2, "stacked": True}
    data, label = read(path, 20, mirror=True, flow=True, **how)
    assert data.shape == (20, 2 * 2 * 2, ROWS, COLUMNS) and {*label.tolist()} == {4}
    right, left = np.array([102, 202, 103, 203, 105, 205, 106, 206]), []
    for sample in data.astype(int):
        mirrored = bool(sample[1, 0, 0] > sample[1, 0, -1])
        left.append(mirrored)
        expected = np.stack([right - 50, right], 1)
        if mirrored:
            expected = expected[:, ::-1].copy()
            expected[::2] = 255 - expected[::2]
        np.testing.assert_array_equal(sample[:, 0, [0, -1]], expected)
    assert {*left} == {True, False}


@pytest.fixture
def film(tmp_path: Path) -> Path:
    """A file of 12 frames, each of one gray (20 times its number), written by OpenCV itself."""
    path = tmp_path / "film.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25, (32, 24))
    if not writer.isOpened():
        pytest.skip("this build of OpenCV writes no videos")
    for number in range(12):
        writer.write(np.full((24, 32, 3), 20 * number, np.uint8))
    writer.release()
    return path


def test_a_file_of_all_frames_is_played(film: Path, read: Read) -> None:
    path = film.parent / "list.txt"
    path.write_text("film.avi 3 8\nfilm.avi 0 9\n")
    data, label = read(path, 2, pattern="", length=3, every=2, height=6, width=8)
    assert data.shape == (2, 3, 3, 6, 8) and label.tolist() == [8, 9]
    assert np.abs(data[0, :, :, 0, 0].astype(int) - [60, 100, 140]).max() <= 2
    assert np.abs(data[1, :, :, 0, 0].astype(int) - [0, 40, 80]).max() <= 2
    gray, _ = read(path, 1, pattern="", length=2, mode="gray")
    assert gray.shape == (1, 1, 2, 24, 32)
    path.write_text("film.avi 8\n" * 20)
    drawn, _ = read(path, 20, pattern="", length=2, start="anywhere", random=True)
    begins = {round(int(each[0, 0, 0, 0]) / 20) for each in drawn}
    assert begins <= {*range(11)} and len(begins) > 4


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ("v0 1", {}, r"list.txt:1: 'v0 1' is not a path, a frame or how many there are, and a label"),
        ("v0 1 x", {}, r"list.txt:1: 'v0 1 x' is not"),
        ("v0 1 -2", {}, r"list.txt:1: 'v0 1 -2' is not"),
        ("\n", {}, r"list.txt: lists no videos"),
        ("v0 1 2\nv9 1 2", {}, r"list.txt:2: v9: frame 000001.png: cannot be read: No such file"),
        ("v0 19 2", {"length": 3}, r"list.txt:1: v0: frame 000021.png: cannot be read"),
        ("v0 2 2", {"length": 3, "start": "anywhere"}, "v0: it has 2 frames, but a sample spans 3"),
        ("v0 2 2", {"length": 3, "start": "parts", "parts": 2}, "has 2 frames, but a snippet has 3"),
        ("v0 1 2", {"crop": 13}, r"v0: its frames have 16 x 12 pixels, too small for a crop of 13"),
        ("v0 1 2", {"start": "listd"}, "unknown start of clips 'listd'; did you mean 'listed'"),
        ("v0 1 2", {"mode": "native"}, "unknown mode of clips 'native'"),
        ("v0 1 2", {"length": 0}, r"length 0 of clips .valid: 1 to 32,768"),
        ("v0 1 2", {"places": 4}, r"clips are cut at 4 places"),
        ("v0 1 2", {"lenght": 4}, "unknown option of kind clips 'lenght'; did you mean 'length'"),
        ("v0 1 2", {"pattern": "a.png"}, "'a.png' is not a name of frames' files: it needs one %d"),
        ("v0 1 2", {"pattern": "%d%d.png"}, "it needs one %d"),
        ("v0 1 2", {"pattern": "%9999d.png"}, "it needs one %d"),
        ("v0 1 2", {"pattern": "../%d.png"}, "without a folder"),
        ("v0 1 2", {"pattern": "%s%d.png"}, "it needs one %d"),
        ("v0 1 2", {"pattern": "%c%c%d.png"}, "and one %c"),
        ("v0 1 2", {"pattern": ""}, "list.txt:1: v0: no such file"),
    ],
)
def test_what_is_wrong_is_told(
    lines: str, options: dict[str, Any], message: str, folders: Any, read: Read
) -> None:
    path = folders(lines)
    with pytest.raises(DataError, match=message):
        read(path, 2, **options)


def test_a_file_that_is_no_video_and_one_that_ends_are_told(film: Path, read: Read) -> None:
    path = film.parent / "list.txt"
    path.write_text("list.txt 0 1\n")
    with pytest.raises(DataError, match=r"list.txt:1: list.txt: it is not a video that OpenCV can play"):
        read(path, 1, pattern="")
    path.write_text("film.avi 11 1\n")
    with pytest.raises(DataError, match=r"film.avi: it has no frame 12; its header says that it has 12"):
        read(path, 1, pattern="", length=2)


def test_frames_of_several_sizes_are_told(folders: Any, read: Read, tmp_path: Path) -> None:
    path = folders("v0 1 2")
    cv2.imwrite(str(tmp_path / "v0" / "000002.png"), np.zeros((5, 6, 3), np.uint8))
    with pytest.raises(DataError, match=r"its frames have different sizes: \(12, 16\), \(5, 6\)"):
        read(path, 1, length=2)
    data, _ = read(path, 1, length=2, height=8, width=9)
    assert data.shape == (1, 3, 2, 8, 9)
