"""Verifying our own kernels against a library's, where they compute first.

They were written on one device and run on others. So when a process first uses them for a convolution,
their result is compared with that of cuDNN or cuBLASLt for the same data: the first iteration's, in
which works are called one by one. A kernel that is wrong is replaced, with a warning."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import DemitasseError
from demitasse_gpu.launch import Call

if TYPE_CHECKING:
    from demitasse_gpu.array import DeviceArray
    from demitasse_gpu.device import Device

log = logging.getLogger("demitasse.gpu")

NEAR = {"f32": 1e-3, "tf32": 2e-2, "bf16": 5e-2}
"""How far two results may differ, relative to the largest number: some hundred times the effect of
rounding and of another order of sums, and a tenth of that of a part that was left out or counted twice.
If the terms of sums cancel, nearly nothing but rounding may be left, on which kernels need not agree.
Then the difference is taken relative to what such terms would add up to if they were independent."""

PIECES, PIECE = 4, 2**18
"""What is compared of a large result: this many parts of this many numbers, from first to last."""

OWN = re.compile(r"(copy \d+: )?(tiles|winograd) ")
"""The beginning of the names of ways by our own kernels."""


@dataclass
class Proof:
    """Whether the way ``own`` computes the same as ``other``, in sums of ``terms`` products; None as
    long as this is unknown. ``settle`` is called once, with the answer. All convolutions that are equal
    share a proof."""

    what: str
    own: str
    other: str
    near: float
    terms: int
    settle: Callable[[bool], None]
    holds: bool | None = None


class HeldCall(Call):
    """A call, ``own``, that computes ``made``. The first time that it is called outside a capture, it is
    compared with ``other``; from then on the right one is called. The first two of ``held`` are the
    factors."""

    def __init__(
        self,
        device: Device,
        own: Callable[[int], object],
        other: Callable[[int], object],
        made: DeviceArray,
        proof: Proof,
        held: Sequence[Any],
    ) -> None:
        super().__init__(device, own, held)
        self._other: Callable[[int], object] | None = other
        self._made, self._proof, self._factors = made, proof, held[:2]

    def __call__(self) -> None:
        with self.device.turn:
            self.device.driver.enter()
            if self._other is not None and not self.device.capturing:
                self._compare(self._other)
            else:
                self._call(self._stream)

    def _compare(self, other: Callable[[int], object]) -> None:
        """Leave the result of the right way in ``made``."""
        proof = self._proof
        if proof.holds is None:
            try:
                other(self._stream)
            except (DemitasseError, MemoryError) as error:
                log.warning(
                    "%s: our kernel %r cannot be compared with %s: %s",
                    *(proof.what, proof.own, proof.other, error),
                )
                self._other = None  # it stays unknown
                self._call(self._stream)
                return
            expected = pieces(self._made)
            self._made[...] = 0xFFFF if self._made.dtype == np.uint16 else np.nan  # shows what is unset
            self._call(self._stream)
            found = pieces(self._made)
            distance = apart(found, expected)
            if math.isnan(distance):
                return  # NaN, infinity or only zeros prove nothing; the next call may
            if distance > proof.near:
                lengths = math.prod(root_mean_square(pieces(factor)) for factor in self._factors)
                distance = apart(found, expected, math.sqrt(proof.terms) * lengths)
            proof.holds = distance <= proof.near
            proof.settle(proof.holds)
            if not proof.holds:
                far = f"differ by {distance:.2g} of the largest from those of {proof.other}"
                if not math.isfinite(distance):
                    far = f"are not finite, or missing, unlike those of {proof.other}"
                log.warning(
                    "%s: our kernel %r makes numbers that %s, which is used instead; please report it, "
                    "with the output of demitasse doctor here",
                    *(proof.what, proof.own, far),
                )
                other(self._stream)
        else:
            (self._call if proof.holds else other)(self._stream)
        self._call, self._other = (self._call if proof.holds else other), None


def judge(name: str, found: Iterable[str]) -> str | None:
    """Return the name of a library's way if ``name`` is one by our own kernels; None if it is not, or if
    no library has a way."""
    if not OWN.match(name):
        return None
    return next((each for each in found if not OWN.match(each)), None)


def pieces(made: DeviceArray) -> list[np.ndarray]:
    """Return parts of an array, or all of a small one, on the host in float32 (bfloat16 is uint16)."""
    flat = made.reshape(-1)
    if flat.size <= PIECES * PIECE:
        starts, length = [0], flat.size
    else:
        starts = [(flat.size - PIECE) * number // (PIECES - 1) for number in range(PIECES)]
        length = PIECE
    parts = [np.asarray(flat[start : start + length]) for start in starts]
    return [
        (part.astype(np.uint32) << 16).view(np.float32) if part.dtype == np.uint16 else part
        for part in parts
    ]


def root_mean_square(parts: Sequence[np.ndarray]) -> float:
    """Return the root mean square of the numbers in all parts."""
    squares = sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)
    return math.sqrt(squares / max(1, sum(part.size for part in parts)))


def apart(found: Sequence[np.ndarray], expected: Sequence[np.ndarray], least: float = 0.0) -> float:
    """Return the largest difference, relative to the largest expected number, or to ``least`` if that is
    larger. Returns infinity if a number is not finite where a finite one is expected, and NaN if the
    expected numbers prove nothing."""
    largest = float(np.max([np.abs(each).max(initial=0) for each in expected]))  # NaN if any is
    if not math.isfinite(largest):
        return math.nan
    with np.errstate(invalid="ignore", over="ignore"):
        off = [np.abs(a - b).max(initial=0) for a, b in zip(found, expected, strict=True)]
    worst = float(np.max(off))
    if not math.isfinite(worst):
        return math.inf
    return worst / max(largest, least) if largest else math.nan
