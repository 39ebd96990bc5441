"""Folders of images, with a sub-folder for each class."""

from __future__ import annotations

from pathlib import Path

from demitasse import DataError

IMAGE_ENDINGS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Suffixes of files that count as images."""


def images_by_class(folder: Path) -> list[list[Path]]:
    """Return the images of each class in a folder. Its sub-folders, sorted by name, are the classes 0,
    1, ...; a folder whose sub-folders have no images is class 0 itself. Hidden sub-folders do not count.
    Raises DataError if an empty sub-folder precedes one with images, as it would shift the numbers of
    the classes after it."""

    def images_of(one: Path) -> list[Path]:
        found = (p for p in one.rglob("*") if p.suffix.lower() in IMAGE_ENDINGS and p.is_file())
        return sorted(found, key=Path.as_posix)

    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    images = [images_of(each) for each in classes]
    while images and not images[-1]:
        images.pop()
    if not images:
        return [images_of(folder)]
    if empty := [path.name for path, each in zip(classes, images, strict=False) if not each]:
        raise DataError(
            f"{folder}: its sub-folders are the classes, but there are no images in "
            f"{', '.join(empty[:4])}{' ...' if len(empty) > 4 else ''}, which would shift the numbers "
            f"of the others; remove {'them' if empty[1:] else 'it'}, or name a list"
        )
    return images
