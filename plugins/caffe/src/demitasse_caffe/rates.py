"""Caffe's learning rate policies: records that map an iteration (from 0) to a rate."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Fixed:
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
        return self.base_lr * _power(self.gamma, iteration // self.stepsize)


@dataclass(frozen=True)
class Exp:
    """base_lr * gamma ^ iteration."""

    base_lr: float
    gamma: float

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(self.gamma, iteration)


@dataclass(frozen=True)
class Inv:
    """base_lr * (1 + gamma * iteration) ^ -power."""

    base_lr: float
    gamma: float
    power: float

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(1.0 + self.gamma * iteration, -self.power)


@dataclass(frozen=True)
class MultiStep:
    """base_lr * gamma ^ (how many of stepvalue are reached)."""

    base_lr: float
    gamma: float
    stepvalue: tuple[int, ...]

    def __call__(self, iteration: int) -> float:
        return self.base_lr * _power(self.gamma, bisect.bisect_right(self.stepvalue, iteration))


@dataclass(frozen=True)
class Poly:
    """base_lr * (1 - iteration / max_iter) ^ power, and 0 beyond max_iter."""

    base_lr: float
    power: float
    max_iter: int

    def __call__(self, iteration: int) -> float:
        left = 1.0 - iteration / self.max_iter
        return self.base_lr * _power(left, self.power) if left > 0 else 0.0


@dataclass(frozen=True)
class Sigmoid:
    """base_lr / (1 + exp(-gamma * (iteration - stepsize)))."""

    base_lr: float
    gamma: float
    stepsize: int

    def __call__(self, iteration: int) -> float:
        # The same function by tanh, which does not overflow.
        return self.base_lr * 0.5 * (1.0 + math.tanh(self.gamma * (iteration - self.stepsize) / 2))


POLICIES = {
    "exp": Exp,
    "fixed": Fixed,
    "inv": Inv,
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
