"""Folders of images, a sub-folder for each class."""

from __future__ import annotations

from pathlib import Path

import pytest

from demitasse import DataError, images_by_class


def test_classes_are_folders_by_name_and_images_by_the_whole_path(tmp_path: Path) -> None:
    for name in ("b/x/1.png", "b/x-y/1.PNG", "b/note.txt", "a/2.jpg", ".kept/1.png", "z/none.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [
        [path.relative_to(tmp_path).as_posix() for path in each] for each in images_by_class(tmp_path)
    ]
    assert found == [["a/2.jpg"], ["b/x-y/1.PNG", "b/x/1.png"]]
    (tmp_path / "aa").mkdir()
    with pytest.raises(DataError, match="there are no images in aa, which would shift the numbers"):
        images_by_class(tmp_path)
