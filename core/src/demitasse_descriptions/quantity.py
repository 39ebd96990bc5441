"""Numbers with a unit and a source, as descriptions give them."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Self

from demitasse import PRECISIONS, DescriptionError, nearest, shortened, unknown

SOURCES = ("measured", "assumed", "vendor", "paper")
_EXAMPLES = {"s": "1 us", "B": "8 GiB", "B/s": "12 GB/s", "FLOP/s": "2 GFLOP/s", "Hz": "3 GHz"}
_SIZES = {p: Decimal(1000) ** i for i, p in enumerate(["n", "u", "m", "", *"kMGTPE"], -3)}
_SIZES |= {f"{p}i": Decimal(1024) ** i for i, p in enumerate("KMGTP", 1)}
_SYMBOLS = {f"{prefix}{unit}": (unit, size) for unit in _EXAMPLES for prefix, size in _SIZES.items()
            if size == 1 or (size < 1) == (unit == "s")}  # fmt: skip
_SYMBOLS |= {f"{prefix}bit/s": ("B/s", size / 8) for prefix, size in _SIZES.items() if size >= 1}
_FORM = re.compile(r"(-?\d+(?:\.\d+)?(?:[eE][+-]?\d{1,3})?) *([a-zA-Z/]+) *(?:\((\w+)\))?", re.A)
_RATED = re.compile(
    r"([a-z]\w{0,99})(?: ([1-9]\d{0,5}(?:x[1-9]\d{0,5}){0,5}))?(?: of ([1-9]\d{0,8}))?", re.A
)


def _unit_meant(text: str, valid: Collection[str]) -> str | None:
    """Return the valid unit that a text may mean by its last word. None if this is a valid unit already,
    or none is close. A small b in a rate means bits: as bytes the rate would be eight times too high."""
    words = re.findall(r"[^\W\d_][\w/]*", re.sub("[\xb5\u03bc]", "u", text.partition("(")[0]))
    word = words[-1] if words else ""
    rate = re.sub(r"bits?(?=/|$)|b(?=/)", "bit", re.sub(r"(?<=[bBt])ps$", "/s", word))
    alike = [unit for unit in valid if ("bit" in unit) == ("bit" in rate)]
    return None if word in valid and word in text else nearest(rate, alike)


@dataclass(frozen=True)
class Quantity:
    """A number with its unit (s, B, B/s, FLOP/s or Hz) and source; prints as ``12 GB/s (paper)``."""

    value: float
    unit: str
    source: str = "assumed"

    @classmethod
    def parse(cls, text: str, source: str = "assumed", unit: str | None = None, where: str = "") -> Self:
        """Return the quantity that a text gives: ``12 GB/s``, or ``12 GB/s (paper)`` with a source of
        its own. It must be in ``unit``, if that is given. Raises DescriptionError that begins with
        ``where``."""
        match = _FORM.fullmatch(text) if isinstance(text, str) else None
        number, symbol, own = match.groups() if match else ("0", str(text), None)
        found, size = _SYMBOLS.get(symbol, ("", Decimal(0)))
        value = float(Decimal(number) * size)
        valid = [other for other, (its, _) in _SYMBOLS.items() if unit in (its, None)]
        if symbol not in valid or not 0 <= value < math.inf or (value == 0 and found != "s"):
            close = None if found else _unit_meant(str(text), valid)
            hint = f"; did you mean {close!r}?" if close else ""
            example = f"a number above 0 with its unit, like {_EXAMPLES[unit or found or 'B/s']!r}"
            raise DescriptionError(f"{where}{shortened(text, quoted=True)}{hint} (valid: {example})")
        if (own or source) not in SOURCES:
            raise DescriptionError(
                unknown("source", str(own or source), SOURCES, f"{where}{shortened(text, quoted=True)}")
            )
        return cls(value, found, own or source)

    def __str__(self) -> str:
        exact = Decimal(repr(self.value))
        sizes = {symbol: size for symbol, (unit, size) in _SYMBOLS.items() if unit == self.unit}
        texts = [f"{(exact / size).normalize():f} {symbol}" for symbol, size in sizes.items()]
        texts = [text for text in texts if self.parse(text).value == self.value]
        return f"{min(texts, key=len)} ({self.source})"


@dataclass(frozen=True)
class RatedOperation:
    """The operations to which a rate applies: those whose name is ``operation``, alone or followed by an
    underscore (``convolution`` includes ``convolution_relu`` and ``convolution_backward_data``). A
    ``window`` restricts it to filters of that size, ``channels`` to filters that read at most this many
    channels. Prints as ``convolution 3x3 of 4``."""

    operation: str
    window: tuple[int, ...] = ()
    channels: int | None = None

    @classmethod
    def parse(cls, text: str, where: str = "") -> Self:
        """Return the operations that a text names. Raises DescriptionError that begins with
        ``where``."""
        match = _RATED.fullmatch(text)
        if match is None:
            valid = "valid: an operation's name, which may be followed by its filters' window and the"
            told = f"{where}{shortened(text, quoted=True)} does not name an operation"
            raise DescriptionError(
                f"{told} ({valid} most channels that they read, like 'convolution 3x3 of 4')"
            )
        name, window, channels = match.groups()
        sides = tuple(map(int, window.split("x"))) if window else ()
        return cls(name, sides, int(channels) if channels else None)

    def __str__(self) -> str:
        window = f" {'x'.join(map(str, self.window))}" if self.window else ""
        return f"{self.operation}{window}{'' if self.channels is None else f' of {self.channels}'}"


@dataclass(frozen=True)
class Rate(Quantity):
    """FLOP/s. As a ``Quantity`` it is the rate in float32. ``others`` has the rates of other precisions,
    of products only (convolutions, inner products), which tensor cores and the like make faster or
    slower. ``operations`` has rates of some operations, by names that ``RatedOperation`` reads; any
    other name raises DescriptionError."""

    others: Mapping[str, Quantity] = field(default_factory=dict, hash=False)
    operations: Mapping[str, Quantity] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in self.operations:
            RatedOperation.parse(name)

    @classmethod
    def of(
        cls,
        table: Mapping[str, Any],
        source: str = "assumed",
        where: str = "",
        places: Mapping[str, str] = MappingProxyType({}),
    ) -> Self:
        """Return the rate that a table gives, such as
        ``{"f32": "67 TFLOP/s", "bf16": "989 TFLOP/s (vendor)"}``; ``source`` applies to entries that
        name none. Raises DescriptionError that begins with the key's entry in ``places``, or else with
        ``where``."""
        own = {**table}
        source = str(own.pop("source", source))
        rates = dict[str, Quantity]()
        for precision, text in own.items():
            place = places.get(precision, where)
            if precision not in PRECISIONS:
                raise DescriptionError(unknown("precision", precision, PRECISIONS, place))
            rates[precision] = Quantity.parse(text, source, "FLOP/s", f"{place}: {precision} = ")
        if "f32" not in rates:
            told = f"{where} needs 'f32', the rate of every precision that has none of its own"
            raise DescriptionError(f"{told} (valid: a rate, or a table of rates by precision with f32)")
        return cls(**vars(rates.pop("f32")), others=rates)

    def __str__(self) -> str:
        whole = {"f32": super().__str__(), **{name: str(rate) for name, rate in self.others.items()}}
        text = ", ".join(f"{rate} in {name}" for name, rate in whole.items())
        return f"{text}, and of {', '.join(self.operations)}" if self.operations else text
