"""Random parts of an image, drawn until they show enough of its objects (Liu et al. 2016, *SSD*, section
2.2, *Data augmentation*), or any large part, as in MobileNet-YOLO's fork."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from demitasse_datasets.annotated.boxes import Reals, areas, common, shares
from demitasse_datasets.annotated.draws import Draws

Bounds = tuple[float | None, float | None]
"""A lower and an upper bound; None for no bound."""
_NONE: Bounds = (None, None)
MOST_TRIALS = 1 << 14


@dataclass(frozen=True)
class Jitter:
    """Draws one part whose sides are shorter than the image's by a fraction of up to ``most`` (the same
    for width and height if ``alike``). For a fifth of the images, the part is the whole image; for
    another fifth, the fraction is halved."""

    most: float
    alike: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a fraction that leaves nothing."""
        if not 0 < self.most < 1:
            raise ValueError(f"a jitter of {self.most:g} is not above 0 and below 1")

    def part(self, draws: Draws) -> Reals:
        """Return the part (4,)."""
        chance, *drawn = draws.block(5)
        shorter = self.most * np.array(drawn[:1] * 2 if self.alike else drawn[:2])
        sides = 1 - shorter * (0.0 if chance < 0.2 else 0.5 if chance < 0.4 else 1.0)
        corner = drawn[2:] * (1 - sides)
        return np.concatenate([corner, corner + sides])


@dataclass(frozen=True)
class Sampler:
    """Draws ``trials`` parts: ``scale`` is the square root of a part's fraction of the image, ``ratio``
    its width over its height. A part is accepted if at least one object meets all bounds: on its overlap
    with the part (intersection over union), on the fraction of the part that it covers, and on the
    fraction of it that the part covers. The first ``most`` accepted parts are kept."""

    scale: tuple[float, float] = (1.0, 1.0)
    ratio: tuple[float, float] = (1.0, 1.0)
    overlap: Bounds = _NONE
    sample_coverage: Bounds = _NONE
    object_coverage: Bounds = _NONE
    most: int | None = None
    trials: int = 100

    def __post_init__(self) -> None:
        """Raises ValueError unless it describes parts of an image."""
        for name, (low, high), limit in (
            ("scale", self.scale, 1.0),
            ("aspect_ratio", self.ratio, np.inf),
        ):
            if not 0 < low <= high <= limit or high == np.inf:
                wanted = "above 0, in order" + (" and at most 1" if limit == 1 else "")
                raise ValueError(f"a sampler's {name} from {low:g} to {high:g} is not {wanted}")
        if not 1 <= self.trials <= MOST_TRIALS:
            raise ValueError(f"a sampler tries {self.trials:,} times (valid: 1 to {MOST_TRIALS:,})")


class Sampling:
    """The accepted parts of several samplers, with all of their trials; without samplers, a jitter's
    part."""

    def __init__(self, samplers: Sequence[Sampler] = (), jitter: Jitter | None = None) -> None:
        counts = [sampler.trials for sampler in samplers]
        self.trials, self._jitter = sum(counts), jitter
        self.draws = 4 * self.trials + (5 if jitter else 0)
        ends = np.cumsum([0, *counts])
        self._each = [
            (slice(begin, end), sampler.most)
            for begin, end, sampler in zip(ends, ends[1:], samplers, strict=False)
        ]

        def spread(values: list[Any], width: int) -> Reals:
            return np.repeat(np.array(values, np.float64).reshape(-1, width), counts, 0).T

        self._low = spread([(s.scale[0], s.ratio[0]) for s in samplers], 2)
        self._span = spread([(s.scale[1], s.ratio[1]) for s in samplers], 2) - self._low
        bounds = [(s.overlap, s.sample_coverage, s.object_coverage) for s in samplers]
        self._free = spread([all(pair == _NONE for pair in each) for each in bounds], 1)[0] > 0
        least = [[-np.inf if low is None else low for low, _ in each] for each in bounds]
        most = [[np.inf if high is None else high for _, high in each] for each in bounds]
        self._least, self._most = (spread(each, 3)[:, :, None] for each in (least, most))

    def found(self, boxes: Reals, draws: Draws) -> Reals:
        """Return the accepted parts (n, 4) of an image with boxes (objects, 4), by sampler."""
        drawn = draws.block(4, self.trials)
        scale, ratio = self._low + drawn[:2] * self._span
        ratio = ratio.clip(scale**2, scale**-2)  # so that no side is longer than the image's
        root = np.sqrt(ratio)
        sides = np.stack([scale * root, scale / root], -1).clip(0, 1)
        corner = drawn[2:].T * (1 - sides)
        parts = np.concatenate([corner, corner + sides], -1)
        met = self._met(parts, boxes)
        return np.concatenate([parts[each][met[each]][:most] for each, most in self._each])

    def part(self, boxes: Reals, draws: Draws) -> Reals | None:
        """Return a random one of the accepted parts; None if there are none."""
        if self._jitter and not self._each:
            return self._jitter.part(draws)
        found = self.found(boxes, draws) if self._each else ()
        return found[draws.below(len(found))] if len(found) else None

    def _met(self, parts: Reals, boxes: Reals) -> NDArray[np.bool_]:
        """Which parts have an object that meets their bounds."""
        shared = common(parts[:, None], boxes[None])
        part, whole = areas(parts)[:, None], areas(boxes)[None]
        covered = np.stack([shares(shared, each) for each in (part + whole - shared, part, whole)])
        good: Any = (covered >= self._least) & (covered <= self._most)
        return np.asarray(good.all(0).any(1) | self._free)
