"""The options of a description's ``sync = { plugin = "parameter_server", ... }``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from demitasse import DescriptionError, unknown

MODELS = ("bsp", "ssp", "asp")


@dataclass(frozen=True)
class Options:
    """The options of a parameter server.

    - ``model``: how far a worker may run ahead of the others (``bsp``, ``ssp``, ``asp``)
    - ``staleness``: under SSP, how many iterations a worker may be ahead of the slowest
    - ``delay``: for each worker, how many times its own step it is held up before each step, to emulate
      stragglers
    - ``bucket_bytes``: gradients of neighbouring layers are summed, or pushed, together up to this size
    - ``servers``: across processes, how many of them (the first ones) hold a shard of the parameters
    - ``bind``: whether each worker has processors of its own, if the load on all processors is then
      equal
    """

    model: str = "bsp"
    staleness: int = 3
    delay: tuple[float, ...] = ()
    bucket_bytes: int | None = None
    servers: int = 2
    bind: bool = True

    @classmethod
    def read(cls, given: Mapping[str, Any], where: str) -> Options:
        """Return checked options, with defaults. For an invalid option, raises DescriptionError, which
        names the place, the value and the valid values."""
        place = f"{where}: sync"
        for name in given:
            if name not in (valid := [each.name for each in fields(cls)]):
                raise DescriptionError(unknown("option", name, valid, place))
        model = given.get("model", cls.model)
        if model not in MODELS:
            raise DescriptionError(unknown("model", str(model), MODELS, place))
        if "staleness" in given and model != "ssp":
            raise DescriptionError(
                f'{place}: staleness is the bound of model = "ssp", but the model here is {model!r}'
            )
        return cls(
            model,
            _whole(given, "staleness", cls.staleness, 0, place),
            _delays(given.get("delay", []), place),
            _whole(given, "bucket_bytes", None, 1, place),
            _whole(given, "servers", cls.servers, 2, place),
            _flag(given, "bind", cls.bind, place),
        )

    @property
    def bound(self) -> int | None:
        """How many iterations a worker may be ahead; None if there is no bound."""
        return self.staleness if self.model == "ssp" else None

    def delay_of(self, worker: int) -> float:
        """Return how many times its own step a worker is held up."""
        return self.delay[worker] if worker < len(self.delay) else 0.0

    def told(self, count: int, name: str) -> str:
        """Return the note of SSP and ASP for ``count`` workers or processes, as ``name`` calls them."""
        bound = "" if self.bound is None else f" at most {self.bound} iterations ahead"
        if count == 1:
            return f"{self.model.upper()}: one {name} pushes and pulls on its own{bound}"
        several = f"{name}es" if name.endswith("s") else f"{name}s"
        return f"{self.model.upper()}: {count} {several} push and pull on their own{bound}"


def _whole(given: Mapping[str, Any], name: str, default: Any, least: int, place: str) -> Any:
    value = given.get(name, default)
    if value is not default and (type(value) is not int or value < least):
        raise DescriptionError(f"{place}: {name} = {value!r} (valid: a whole number, {least} or more)")
    return value


def _flag(given: Mapping[str, Any], name: str, default: bool, place: str) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise DescriptionError(f"{place}: {name} = {value!r} (valid: true, false)")
    return value


def _delays(value: Any, place: str) -> tuple[float, ...]:
    numbers = isinstance(value, list | tuple) and all(
        isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < math.inf
        for each in value
    )
    if not numbers:
        raise DescriptionError(
            f"{place}: delay = {value!r} (valid: a list with a number, 0 or more, for each worker, like "
            f"[0, 2.0]: the second is delayed by twice its own step)"
        )
    return tuple(map(float, value))
