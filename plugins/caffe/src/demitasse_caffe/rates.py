"""Caffe's learning rate policies, one of Intel's fork, warm-up, and minimum rates. They are records that
map an iteration (from 0) to a rate, and to the count of steps that Caffe's solvers keep and save."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

STEP = "current_step"
"""Caffe's name for the count of steps in its solver states."""


class Rate(Protocol):
    """The interface of all policies."""

    def __call__(self, iteration: int) -> float:
        """Return the rate of an iteration."""

    def steps(self, iteration: int) -> int:
        """Return how many times the rate has been stepped down when it is evaluated at an iteration."""


class Steady:
    """The base class of policies that count no steps."""

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
    """base_lr * gamma ^ (number of values in stepvalue that are reached). As in Caffe they are reached
    in order, at most one in each iteration."""

    base_lr: float
    gamma: float
    stepvalue: tuple[int, ...]

    @cached_property
    def _reached(self) -> tuple[int, ...]:
        """The iteration from which on each value counts."""
        later = itertools.accumulate(self.stepvalue, lambda last, step: max(last + 1, step), initial=-1)
        return tuple(later)[1:]

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(self.gamma, self.steps(iteration))

    def steps(self, iteration: int) -> int:
        return bisect.bisect_right(self._reached, iteration)


@dataclass(frozen=True)
class MultiFixed(Steady):
    """Each rate of stagelr applies up to and including the iteration at the same position in stageiter;
    the last one also applies beyond."""

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
    """base_lr / (1 + exp(-gamma * (iteration - stepsize))), which falls if gamma is negative."""

    base_lr: float
    gamma: float
    stepsize: int

    def __call__(self, iteration: int) -> float:
        exponent = self.gamma * (iteration - self.stepsize)
        small = math.exp(-abs(exponent))  # does not overflow
        return self.base_lr * (1.0 if exponent >= 0 else small) / (1.0 + small)


@dataclass(frozen=True)
class WarmUp:
    """A warm-up from ``first`` in equal steps to ``last``, which iteration ``iterations`` would have.
    From that iteration on the rate is that of ``then``, whose iterations are counted from the start of
    the run.

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
    """A warm-up that rises with the square of the iteration, as in NVIDIA's fork."""

    def _share(self, iteration: int) -> float:
        return (iteration / self.iterations) ** 2


@dataclass(frozen=True)
class AtLeast:
    """The larger of ``rate`` and ``least``."""

    least: float
    rate: Rate

    def __call__(self, iteration: int) -> float:
        return max(self.least, self.rate(iteration))

    def steps(self, iteration: int) -> int:
        return self.rate.steps(iteration)


@dataclass(frozen=True)
class Above:
    """The sum of ``rate`` and ``least``."""

    least: float
    rate: Rate

    def __call__(self, iteration: int) -> float:
        return self.least + self.rate(iteration)

    def steps(self, iteration: int) -> int:
        return self.rate.steps(iteration)


@dataclass(frozen=True)
class StepsTaken:
    """What a solver state stores about its rate: the number of steps up to the last iteration, if it is
    not 0. Caffe counts a step when it computes an iteration's rate, not when it saves."""

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
"""The policies by their names in lr_policy; their fields are the solver's fields."""


def _power(base: float, exponent: float) -> float:
    try:
        return float(base**exponent)
    except OverflowError:
        return math.inf
