"""Kernels for many shapes: what was tried for one shape holds for others, within bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from demitasse import Candidate, Place, Request, TensorSpec
from demitasse.operations import VOCABULARY
from demitasse_training.alike import Alike

KERNELS = ("direct", "by tiles", "as a product")


class Last:
    """A tuner that picks the last candidate, and counts its picks."""

    def __init__(self) -> None:
        self.tried = 0

    def pick(self, plugin: str, request: Request, candidates: Sequence[Candidate]) -> tuple[int, str]:
        self.tried += 1
        return len(candidates) - 1, "tried"

    def choices(self) -> dict[str, str]:
        return {"a": "b"}

    def prefer(self, choices: Mapping[str, str]) -> None:
        self.preferred = choices


def candidates(names: Sequence[str] = KERNELS) -> list[Candidate]:
    return [Candidate(name, lambda inputs, outputs, workspace: lambda: None) for name in names]


def convolution(
    height: int, width: int, *, images: int = 1, channels: int = 8, kernel: int = 3
) -> Request:
    """A convolution's request; one attribute is the size of its images."""
    x = TensorSpec((images, channels, height, width), "float32")
    w = TensorSpec((16, channels, kernel, kernel), "float32")
    y = TensorSpec((images, 16, height - kernel + 1, width - kernel + 1), "float32")
    attributes = {**VOCABULARY["convolution"].attributes, "size": (height, width)}
    return Request(VOCABULARY["convolution"], (x, w, None), (y,), attributes, Place("core"))


@pytest.fixture
def many() -> tuple[Last, Alike]:
    """A tuner, and an Alike over it that has picked for one size."""
    tuner = Last()
    first = Alike(tuner)
    assert first.pick("cpu", convolution(20, 30), candidates()) == (2, "tried")
    return tuner, replace(first, tries=False)


@pytest.mark.parametrize(
    "request_",
    [convolution(30, 20), convolution(35, 38), convolution(9, 9), convolution(20, 30, images=2)],
)
def test_a_choice_holds_for_other_sizes_and_numbers(many: tuple[Last, Alike], request_: Request) -> None:
    tuner, alike = many
    assert alike.pick("cpu", request_, candidates()) == (2, "as for another size")
    turned = candidates(KERNELS[::-1])
    assert alike.pick("cpu", request_, turned) == (0, "as for another size"), "by its name"
    assert tuner.tried == 1


@pytest.mark.parametrize(
    ("plugin", "request_", "names"),
    [
        ("cpu", convolution(70, 60), KERNELS),
        ("cpu", convolution(20, 30, channels=4), KERNELS),
        ("cpu", convolution(20, 30, kernel=1), KERNELS),
        ("cpu", convolution(20, 30), KERNELS[:2]),
        ("other", convolution(20, 30), KERNELS),
    ],
    ids=["much larger", "channels", "kernel", "not offered", "plugin"],
)
def test_what_is_unlike_is_tried_once(
    many: tuple[Last, Alike], plugin: str, request_: Request, names: Sequence[str]
) -> None:
    tuner, alike = many
    for reason in ("tried", "as for another size"):
        assert alike.pick(plugin, request_, candidates(names)) == (len(names) - 1, reason)
    assert tuner.tried == 2


def test_while_it_tries_each_is_tried(many: tuple[Last, Alike]) -> None:
    tuner, alike = many
    again: Any = replace(alike, tries=True)
    assert again.pick("cpu", convolution(30, 20), candidates())[1] == "tried"
    assert tuner.tried == 2
    assert again.choices() == {"a": "b"}
    again.prefer({"c": "d"})
    assert tuner.preferred == {"c": "d"}
