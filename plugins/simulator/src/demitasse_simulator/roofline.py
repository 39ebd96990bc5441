"""The cost of an operation on a machine that is only described, from its rates, bandwidths and
launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from demitasse import (
    Candidate,
    Level,
    Machine,
    MemorySpace,
    Place,
    Quantity,
    Rate,
    RatedOperation,
    Request,
    missing_number,
    nearest,
)
from demitasse_simulator.operation_rates import OperationRates
from demitasse_simulator.rates import INTENSE, Costed

PLAIN = "f32"
"""The precision of a rate that does not name one."""

BOUND = (
    "this time is a lower bound: arithmetic is costed by the peak {}, of which most layers reach a "
    "fifth to two thirds, and none all; describe what they reach, too (`sustained`)"
)
"""The note that is given if kernels do not state their time and a description has only a peak."""


class Rated(NamedTuple):
    """A rate of a level: its key in the description, its number, its precision, and the operation that
    it applies to (empty: all)."""

    word: str
    quantity: Quantity
    precision: str
    operation: str = ""

    def __str__(self) -> str:
        precision = "" if self.precision == PLAIN else f" in {self.precision}"
        return f"{self.quantity}{precision}{self.operation and f' of {self.operation}'}"


def rate_of(level: Level, precision: str) -> Rated | None:
    """Return the rate at which one sibling of a level computes: the sustained rate in this precision,
    else the peak in it, else the same in float32. None if the description has none of these."""
    for taken in dict.fromkeys((precision, PLAIN)):
        for word in ("sustained", "peak"):
            quantity: Quantity | None = getattr(level, word)
            if quantity is None:
                continue
            if (found := _in_precision(quantity, taken)) is not None:
                return Rated(word, found, taken)
    return None


def _in_precision(quantity: Quantity, precision: str) -> Quantity | None:
    """Return a rate in one precision; None if it is not described."""
    if precision == PLAIN:
        return Quantity(quantity.value, quantity.unit, quantity.source)
    return quantity.others.get(precision) if isinstance(quantity, Rate) else None


def beneath(machine: Machine, level: Level) -> list[tuple[Level, int]]:
    """Return the levels below a level, outermost first, each with the total number that one sibling of
    the level contains."""
    counts, found = {level.name: 1}, []
    for inner in machine.levels:
        if inner.parent in counts:
            counts[inner.name] = counts[inner.parent] * inner.count
            found.append((inner, counts[inner.name]))
    return found


def around(machine: Machine, level: Level) -> list[Level]:
    """Return a level and the levels around it, innermost first."""
    levels = [level]
    while (parent := levels[-1].parent) is not None:
        levels.append(machine.level(parent))
    return levels


class Home(NamedTuple):
    """The memory that holds a worker's tensors: its level, how many ``memories`` of its kind are used
    together, and how many workers share these (``sharing``)."""

    level: Level
    memory: MemorySpace
    memories: int
    sharing: int


def home_of(machine: Machine, level: Level, sharing: Mapping[str, int]) -> Home | None:
    """Return the memory that holds the tensors of a worker at a level: at the level itself, else around
    it, else below it, where all memory is the worker's own. ``sharing`` has the number of workers by
    level. None if no memory is described."""
    shared = 1
    for outer in around(machine, level):
        if outer.memory:
            return Home(outer, outer.memory[0], outer.memory[0].count, shared)
        shared *= sharing.get(outer.name, 1)
    for inner, count in beneath(machine, level):
        if inner.memory:
            return Home(inner, inner.memory[0], inner.memory[0].count * count, 1)
    return None


class _Computing(NamedTuple):
    """Where a worker's arithmetic is done: the level whose rate is known, how many of its siblings
    compute together, and how many workers share these."""

    level: Level
    siblings: int
    sharing: int


def _computing(machine: Machine, level: Level, sharing: Mapping[str, int]) -> _Computing | None:
    """Return where a worker computes: at a level, else below it, else around it. None if no level has a
    rate."""
    for inner, count in [(level, 1), *beneath(machine, level)]:
        if rate_of(inner, PLAIN) is not None:
            return _Computing(inner, count, 1)
    shared = 1
    for outer in around(machine, level):
        if rate_of(outer, PLAIN) is not None:
            return _Computing(outer, 1, shared)
        shared *= sharing.get(outer.name, 1)
    return None


class Roofline:
    """Costs from a level's rate, its memory's bandwidth, and the additional seconds of each kernel
    (``launch``; 0 if no level around has one). If the description lacks a rate or a bandwidth, raises
    DescriptionError, which names the key. ``fallen_back`` says whether a product was costed in float32
    because the description has no rate for the requested precision."""

    def __init__(self, machine: Machine, place: Place, sharing: Mapping[str, int]) -> None:
        level = machine.level(place.level)
        why = "the cost of operations at it needs, where kernels do not say theirs"
        computing = _computing(machine, level, sharing)
        if computing is None:
            raise missing_number(machine, level, "peak", why)
        home = home_of(machine, level, sharing)
        if home is None:
            raise missing_number(machine, level, "memory", why)
        space, bandwidth = home.memory.space, home.memory.bandwidth
        if bandwidth is None:
            raise missing_number(machine, home.level, f"memory.bandwidth of space {space!r}", why)
        self.bandwidth = bandwidth.value * home.memories / home.sharing
        self._lines = [f"memory {space!r} {bandwidth} x {home.memories}{_shared(home.sharing)}"]
        levels = around(machine, level)
        launch = next((outer.launch for outer in levels if outer.launch is not None), None)
        self.launch = 0.0 if launch is None else launch.value
        self._lines += [] if launch is None else [f"each kernel {launch} besides"]
        last = next((outer.caches[-1] for outer in levels if outer.caches), None)
        holds = None if last is None else last.capacity
        self._cache = holds.value * last.count if last is not None and holds is not None else 0.0
        self._place, self._computing = level, computing
        self._operations = OperationRates(computing.level.sustained)
        self._rates: dict[tuple[str, str, RatedOperation | None], Rated] = {}  # used for operations
        self._bounds: dict[Rated, None] = {}  # the peaks among these that decided a cost
        self.fallen_back = False

    def cost(
        self, plugin: str, candidate: Candidate, request: Request, flops: float, moved: float
    ) -> Costed:
        """Return the kernel's own seconds, or else the larger time of arithmetic and memory plus a
        launch."""
        if candidate.seconds is not None:
            return Costed(candidate.seconds, "kernel")
        rated = self._rate(request, product=flops > INTENSE * moved)
        _, siblings, sharing = self._computing
        arithmetic = flops * sharing / (rated.quantity.value * siblings)
        again = 0.0 if rated.operation else self._read_again(request)
        memory = moved * (1 + again) / self.bandwidth
        if rated.word == "peak" and arithmetic > memory:
            self._bounds[rated] = None
        return Costed(max(arithmetic, memory) + self.launch, "roofline")

    def _read_again(self, request: Request) -> float:
        """Return what is read a second time, as a share of all bytes: where a batch's statistics are
        needed first, whatever they are of, unless a described cache still holds it."""
        name = request.operation.name
        if not name.startswith("batch_norm") or "inference" in name:
            return 0.0
        first = request.inputs[: 2 if "_backward" in name else 1]  # x, or dy and x
        again = sum(each.nbytes for each in first if each is not None)
        whole = sum(each.nbytes for each in (*request.inputs, *request.outputs) if each is not None)
        return again / whole if again > self._cache else 0.0

    def _rate(self, request: Request, *, product: bool) -> Rated:
        """Return the rate of an operation's arithmetic: the rate of such operations if the level has
        one, otherwise the level's rate. tf32 and bf16 only speed up products; all other operations have
        the rate of float32."""
        given = [each for each in request.inputs if each is not None]
        largest = max(given, key=lambda each: each.nbytes, default=None)
        double = largest is not None and largest.dtype == "float64"
        asked = "f64" if double else request.precision if product else PLAIN
        particular = self._operations.find(request)
        key = asked, request.precision, particular
        if key not in self._rates:
            self._rates[key] = self._known(particular, asked, request.precision)
        rated = self._rates[key]
        self.fallen_back |= rated.precision not in (asked, request.precision)
        return rated

    def _known(self, which: RatedOperation | None, asked: str, stored: str) -> Rated:
        """Return the operation's own rate in the run's precision, else in the requested one; else the
        level's rate in the requested precision; if there is none, the operation's in float32."""
        own = (asked,) if asked == "f64" else (stored, asked)
        if which is not None and (found := self._of_operation(which, *own)) is not None:
            return found
        whole = self._of_all(asked)
        if which is None or whole.precision == asked:
            return whole
        return self._of_operation(which, PLAIN) or whole

    def _of_operation(self, which: RatedOperation, *precisions: str) -> Rated | None:
        """Return an operation's own rate in the first of these precisions that is described."""
        for precision in precisions:
            if (found := _in_precision(self._operations[which], precision)) is not None:
                return Rated("sustained", found, precision, str(which))
        return None

    def _of_all(self, asked: str) -> Rated:
        rated = rate_of(self._computing.level, asked)
        assert rated is not None, "the level was chosen for its rate"
        return rated

    def describe(self) -> list[str]:
        """Return lines with the numbers behind the costs, each with its source."""
        _, siblings, sharing = self._computing
        at = f"x {siblings}{_shared(sharing)} at level {self._place.name!r}"
        used = dict.fromkeys(self._rates.values())
        lines = [f"{each.word} {each} {at}" for each in used if not each.operation]
        if particular := [each for each in used if each.operation]:
            lines.append(f"sustained {', '.join(map(str, particular))} {at}")
        return lines + self._lines

    def unknown(self, vocabulary: Mapping[str, object]) -> tuple[str, ...]:
        """Return a line for each rate of the description that applies to no operation of the
        vocabulary."""
        where = self._computing.level.location or f"level {self._computing.level.name!r}"
        lines = []
        for each in self._operations.unknown(vocabulary):
            guess = nearest(each.operation, vocabulary)
            hint = f"; did you mean {guess!r}?" if guess else ""
            lines.append(f"{where}: the rate of {str(each)!r} belongs to no composed operation{hint}")
        return tuple(lines)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note that the time is a lower bound, if only a peak is described and it decided some
        costs."""
        return (BOUND.format(" and ".join(map(str, self._bounds))),) if self._bounds else ()


def _shared(workers: int) -> str:
    return f" / {workers} workers" if workers > 1 else ""
