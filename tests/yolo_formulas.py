"""What slow readings of Darknet's losses share, and made-up maps and objects for them."""

from __future__ import annotations

import math

import numpy as np


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def iou(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Of boxes as centre and sides."""
    wide, tall = (
        min(a[i] + a[i + 2] / 2, b[i] + b[i + 2] / 2) - max(a[i] - a[i + 2] / 2, b[i] - b[i + 2] / 2)
        for i in (0, 1)
    )
    if wide <= 0 or tall <= 0:
        return 0.0
    return wide * tall / (a[2] * a[3] + b[2] * b[3] - wide * tall)


def objects_of(rows: np.ndarray) -> list[np.ndarray]:
    """An image's objects (class, centre, sides): Darknet's rows up to one without a width."""
    each = list(rows.reshape(-1, 5))
    return each[: next((k for k, row in enumerate(each) if row[3] == 0), len(each))]


def problem(
    seed: int, images: int, anchors: int, classes: int, found: int, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Maps (images, anchors (5 + classes), rows, columns), and up to ``found`` objects in each image as
    Darknet's rows, filled up with zeros."""
    dice = np.random.default_rng(seed)
    maps = dice.normal(size=(images, anchors * (5 + classes), rows, columns))
    truth = np.zeros((images, found + 2, 5))
    for image in range(images):
        count = dice.integers(0, found + 1)
        truth[image, :count, 0] = dice.integers(0, classes, count)
        truth[image, :count, 1:3] = dice.uniform(0.02, 0.98, (count, 2))
        truth[image, :count, 3:] = dice.uniform(0.05, 0.9, (count, 2))
    return maps, truth.reshape(images, -1)


def annotated(truth: np.ndarray) -> np.ndarray:
    """The same objects as AnnotatedData makes them: (images, 1, objects, 8), with rows of -1."""
    rows = truth.reshape(len(truth), -1, 5)
    made = np.full((len(rows), 1, rows.shape[1], 8), -1.0)
    for image in range(len(rows)):
        for number, (label, x, y, w, h) in enumerate(objects_of(rows[image])):
            corners = (x - w / 2, y - h / 2, x + w / 2, y + h / 2)
            made[image, 0, number] = (image, label + 1, number, *corners, 0)
    return made
