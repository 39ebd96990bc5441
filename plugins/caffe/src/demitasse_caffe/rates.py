"""Caffe's learning rate policies, one of Intel's fork, warm-up, and least rates: records that map an
iteration (from 0) to a rate, and to the count of steps that Caffe's solvers keep and save."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

STEP = "current_step"
"""What Caffe calls the count of steps in its solver states."""


class Rate(Protocol):
    """What all of them do."""

    def __call__(self, iteration: int) -> float:
        """The rate of an iteration."""

    def steps(self, iteration: int) -> int:
        """How often the rate was stepped down when it is asked for at an iteration."""


class Steady:
    """Policies that count no steps."""

    def steps(self, iteration: int) -> int:
        return 0


@dataclass(frozen=True)
class Fixed(Steady):
    """base_lr."""

    base_lr: float

    def __call__(self, iteration: int) -> float:
        return self.base_lr


@dataclass(frozen=True)
class Step:
    """base_lr * gamma ^ floor(iteration / stepsize)."""

    base_lr: float
    gamma: float
    stepsize: int

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(self.gamma, self.steps(iteration))

    def steps(self, iteration: int) -> int:
        return iteration // self.stepsize


@dataclass(frozen=True)
class Exp(Steady):
    """base_lr * gamma ^ iteration."""

    base_lr: float
    gamma: float

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(self.gamma, iteration)


@dataclass(frozen=True)
class Inv(Steady):
    """base_lr * (1 + gamma * iteration) ^ -power."""

    base_lr: float
    gamma: float
    power: float

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(1.0 + self.gamma * iteration, -self.power)


@dataclass(frozen=True)
class MultiStep:
    """base_lr * gamma ^ (how many of stepvalue are reached). As Caffe counts: in their order, and one
    an iteration."""

    base_lr: float
    gamma: float
    stepvalue: tuple[int, ...]

    @cached_property
    def _reached(self) -> tuple[int, ...]:
        """The iteration from which on each counts."""
        later = itertools.accumulate(self.stepvalue, lambda last, step: max(last + 1, step), initial=-1)
        return tuple(later)[1:]

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(self.gamma, self.steps(iteration))

    def steps(self, iteration: int) -> int:
        return bisect.bisect_right(self._reached, iteration)


@dataclass(frozen=True)
class MultiFixed(Steady):
    """Each rate of stagelr up to and with the iteration of stageiter at its place; the last beyond."""

    stagelr: tuple[float, ...]
    stageiter: tuple[int, ...]

    def __call__(self, iteration: int) -> float:
        stage = bisect.bisect_left(self.stageiter, iteration)
        return self.stagelr[min(stage, len(self.stagelr) - 1)]


@dataclass(frozen=True)
class Poly(Steady):
    """base_lr * (1 - iteration / max_iter) ^ power, and 0 from max_iter on."""

    base_lr: float
    power: float
    max_iter: int

    def __call__(self, iteration: int) -> float:
        if iteration >= self.max_iter:
            return 0.0
        return self.base_lr * _power(1.0 - iteration / self.max_iter, self.power)


@dataclass(frozen=True)
class Sigmoid(Steady):
    """base_lr / (1 + exp(-gamma * (iteration - stepsize))): it falls where gamma is negative."""

    base_lr: float
    gamma: float
    stepsize: int

    def __call__(self, iteration: int) -> float:
        exponent = self.gamma * (iteration - self.stepsize)
        small = math.exp(-abs(exponent))  # which does not overflow
        return self.base_lr * (1.0 if exponent >= 0 else small) / (1.0 + small)


@dataclass(frozen=True)
class WarmUp:
    """From ``first`` in equal steps to ``last``, which iteration ``iterations`` would have; from then on
    what ``then`` says of the iteration, counted from the start of the run.

    Source: P. Goyal et al., *Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour* (2017), 2.2.
    """

    first: float
    last: float
    iterations: int
    then: Rate

    def __call__(self, iteration: int) -> float:
        if iteration >= self.iterations:
            return self.then(iteration)
        return self.first + (self.last - self.first) * self._share(iteration)

    def steps(self, iteration: int) -> int:
        return self.then.steps(iteration) if iteration >= self.iterations else 0

    def _share(self, iteration: int) -> float:
        return iteration / self.iterations


@dataclass(frozen=True)
class RampUp(WarmUp):
    """A warm-up that rises by the square of the iteration, as in NVIDIA's fork."""

    def _share(self, iteration: int) -> float:
        return (iteration / self.iterations) ** 2


@dataclass(frozen=True)
class AtLeast:
    """What ``rate`` says, but not below ``least``."""

    least: float
    rate: Rate

    def __call__(self, iteration: int) -> float:
        return max(self.least, self.rate(iteration))

    def steps(self, iteration: int) -> int:
        return self.rate.steps(iteration)


@dataclass(frozen=True)
class Above:
    """``least`` more than ``rate`` says."""

    least: float
    rate: Rate

    def __call__(self, iteration: int) -> float:
        return self.least + self.rate(iteration)

    def steps(self, iteration: int) -> int:
        return self.rate.steps(iteration)


@dataclass(frozen=True)
class StepsTaken:
    """What a solver state has of its rate: the steps by the last iteration, where there are some. Caffe
    counts them when it asks for an iteration's rate, not when it saves."""

    rate: Rate

    def __call__(self, iterations: int) -> Mapping[str, int]:
        steps = self.rate.steps(iterations - 1) if iterations else 0
        return {STEP: steps} if steps else {}


POLICIES = {
    "exp": Exp,
    "fixed": Fixed,
    "inv": Inv,
    "multifixed": MultiFixed,
    "multistep": MultiStep,
    "poly": Poly,
    "sigmoid": Sigmoid,
    "step": Step,
}
"""The policies by the name that lr_policy gives them; their fields are the solver's."""


def _power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf
