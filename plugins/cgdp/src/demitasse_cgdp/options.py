"""The options of a description's ``sync = { plugin = "cgdp", ... }``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from demitasse import DescriptionError, unknown
from demitasse_cgdp.model import rates

SCHEMES = ("cgdp", "typical")
NAMES = ("scheme", "chunk", "interval", "step", "range", "threads")
SEARCH = ("interval", "step", "range")


@dataclass(frozen=True)
class Options:
    """``scheme``: who adds gradients: the host's processors (``cgdp``) or accelerators along a tree
    (``typical``). ``chunk``: the number of layers whose gradients are sent together, or None to find it
    by Algorithm 1 with ``interval`` iterations per size, ``step`` and ``reach`` (the description's
    ``range``). ``threads``: the number of host threads that add, or None for as many as the process has
    processors."""

    scheme: str = "cgdp"
    chunk: int | None = None
    interval: int = 10
    step: int = 10
    reach: int = 5
    threads: int | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any], where: str) -> Options:
        """Check the given options and add the defaults. Raises DescriptionError that names the place,
        the value and the valid values."""
        place = f"{where}: sync"
        for name in given:
            if name not in (valid := (*NAMES, *rates.OPTIONS, *rates.SHARES)):
                raise DescriptionError(unknown("option", name, valid, place))
        rates.check(given, place)
        scheme = given.get("scheme", cls.scheme)
        if scheme not in SCHEMES:
            raise DescriptionError(unknown("scheme", str(scheme), SCHEMES, place))
        chunk = given.get("chunk", "auto")
        if chunk != "auto" and not _whole(chunk):
            raise DescriptionError(
                f'{place}: chunk = {chunk!r} (valid: "auto", or a whole number, 1 or more)'
            )
        idle = [name for name in NAMES[1:] if name in given] if scheme == "typical" else []
        if idle:
            raise DescriptionError(
                f'{place}: {idle[0]} is for scheme = "cgdp", but the scheme is {scheme!r}'
            )
        if chunk != "auto" and (tuned := [name for name in SEARCH if name in given]):
            raise DescriptionError(
                f'{place}: {tuned[0]} is for the search of chunk = "auto", but chunk is {chunk}'
            )
        for name in (*SEARCH, "threads"):
            if name in given and not _whole(given[name]):
                raise DescriptionError(
                    f"{place}: {name} = {given[name]!r} (valid: a whole number, 1 or more)"
                )
        return cls(
            scheme,
            None if chunk == "auto" else chunk,
            given.get("interval", cls.interval),
            given.get("step", cls.step),
            given.get("range", cls.reach),
            given.get("threads"),
        )


def _whole(value: Any) -> bool:
    return type(value) is int and value >= 1
