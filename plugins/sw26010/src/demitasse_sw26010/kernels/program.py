"""From a program of the mesh to a candidate, with its LDM checked, its cost counted and its work
bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

from demitasse import Candidate, DataError, Layout, Request, TensorSpec, Work
from demitasse_sw26010.model.cost import Cost
from demitasse_sw26010.model.ldm import CoreGroup, Ldm, LdmBuffer

if TYPE_CHECKING:
    from demitasse_sw26010.explanation import KernelReport

Place = tuple[str, int]

PLACES = CoreGroup()
"""The emulated mesh memory, one for each thread that works."""


@dataclass(frozen=True)
class Absent:
    """An absent operand, which becomes an empty array of its element type."""

    dtype: str = "float32"


@dataclass(frozen=True)
class Program:
    """A planned kernel: the loop's module and name, its LDM, the element types of its operands in the
    order in which the loop takes them (an ``Absent`` one is empty), and its numbers, of which tuples
    become arrays."""

    kernel: str
    loop: tuple[str, str]
    ldm: Ldm
    operands: tuple[str | Absent, ...]
    numbers: tuple[Any, ...]

    def function(self) -> Any:
        """Return the loop, which Python can run without the data."""
        module, name = self.loop
        return getattr(import_module(f"demitasse_sw26010.loops.{module}"), name)

    def compiled(self) -> Any:
        """Return the loop in machine code, compiled when it is first called."""
        from demitasse_sw26010.model.programs import machine_code

        return machine_code(self.function())

    def arguments(self) -> list[Any]:
        """Return the numbers in the form that the compiled loop takes."""
        import numpy as np

        return [np.array(n, _kind(n)) if isinstance(n, tuple) else n for n in self.numbers]

    @property
    def cost(self) -> Cost:
        """The cost of one run, counted by the same code that computes, without touching data."""
        return count(self)


def _kind(numbers: tuple[Any, ...]) -> str:
    return "float64" if any(isinstance(number, float) for number in numbers) else "int64"


@lru_cache(maxsize=4096)
def count(program: Program) -> Cost:
    """Run a program without its data, and return what its counters say."""
    import numpy as np

    from demitasse_sw26010.model.mesh import COUNTERS

    counters = [0.0] * COUNTERS
    operands = [
        np.empty(0, kind.dtype) if isinstance(kind, Absent) else np.empty(1, kind)
        for kind in program.operands
    ]
    ldm = PLACES.arrays(program.ldm, fill=False)
    program.function()(counters, False, *ldm, *operands, *program.numbers)
    return Cost.of(counters)


@dataclass(frozen=True)
class Part:
    """A program and where its operands are: ("in", 0), ("out", 1), ("workspace", 0) or ("wrong", 0). The
    last is a single number, which the program sets to one more than a label that is not a class."""

    program: Program
    places: tuple[Place, ...]


class Binder:
    """The ``Candidate.bind`` of programs that run one after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)

    @property
    def cost(self) -> Cost:
        """The cost of all parts."""
        return Cost.total(part.program.cost for part in self.parts)

    def explain(self) -> KernelReport:
        """Return a report on the kernel's cost and the principles it violates, which prints as lines."""
        from demitasse_sw26010.explanation import report_of

        return report_of(self)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        import numpy as np

        from demitasse_sw26010.model.mesh import COUNTERS

        wrong, counters = np.zeros(1, np.int64), np.zeros(COUNTERS)
        scratch = None if workspace is None else workspace.view("float32")
        given = {"in": inputs, "out": outputs, "workspace": [scratch], "wrong": [wrong]}
        runs, strange = [], {}
        for part in self.parts:
            arrays = []
            for (side, position), kind in zip(part.places, part.program.operands, strict=True):
                if isinstance(kind, Absent):
                    arrays.append(np.empty(0, kind.dtype))
                    continue
                array = given[side][position].reshape(-1)
                arrays.append(array)
                shared = any(x is not None and np.may_share_memory(array, x) for x in inputs)
                if side in ("out", "workspace") and not shared and array.dtype.kind == "f":
                    strange[side, position] = array
            program = part.program
            runs.append((program.compiled(), program.ldm, arrays, program.arguments()))
        undefined = list(strange.values())

        def work() -> None:
            # Whatever a kernel does not write, or reads before writing it, is NaN.
            for array in undefined:
                array.fill(np.nan)
            for loop, ldm, arrays, numbers in runs:
                loop(counters, True, *PLACES.arrays(ldm), *arrays, *numbers)
            if wrong[0]:
                which, wrong[0] = int(wrong[0]) - 1, 0
                raise DataError(f"label {which} of the batch is not one of the classes")

        return work


def part(
    request: Request,
    kernel: str,
    loop: tuple[str, str],
    ldm: Sequence[LdmBuffer],
    places: Sequence[Place],
    numbers: Sequence[Any],
) -> Part:
    """Return a program for a request's operands. Raises PlanError if it needs more LDM than there is."""
    sides = {"in": request.inputs, "out": request.outputs}
    operands: list[str | Absent] = []
    for side, position in places:
        if side == "workspace":
            operands.append("float32")
        elif side == "wrong":
            operands.append("int64")
        else:
            specs = sides[side]
            spec = specs[position] if position < len(specs) else None
            operands.append(spec.array_type if spec is not None else Absent())
    program = Program(kernel, loop, Ldm(kernel, tuple(ldm)), tuple(operands), tuple(numbers))
    return Part(program, tuple(places))


def candidate_of(
    kernel: str,
    parts: Sequence[Part],
    *,
    workspace: int = 0,
    layouts: tuple[Sequence[Layout], Sequence[Layout]] = ((), ()),
    in_place: bool = True,
) -> Candidate:
    """Return a kernel of these parts as a candidate, with the seconds that the model counts."""
    binder = Binder(parts)
    bind: Callable[..., Work] = binder
    seconds = binder.cost.seconds
    return Candidate(kernel, bind, tuple(layouts[0]), tuple(layouts[1]), workspace, seconds, in_place)


def program_candidate(
    request: Request,
    kernel: str,
    loop: tuple[str, str],
    ldm: Sequence[LdmBuffer],
    places: Sequence[Place],
    numbers: Sequence[Any],
    *,
    workspace: int = 0,
    layouts: tuple[Sequence[Layout], Sequence[Layout]] = ((), ()),
    in_place: bool = True,
) -> Candidate:
    """Return a candidate of one part. The ``workspace`` in bytes, if any, is its last operand."""
    places = (*places, ("workspace", 0)) if workspace else places
    only = part(request, kernel, loop, ldm, places, numbers)
    return candidate_of(kernel, [only], workspace=workspace, layouts=layouts, in_place=in_place)


def given(operand: TensorSpec | None) -> TensorSpec:
    """Return an operand that the operation always has."""
    assert operand is not None
    return operand


def is_single(*operands: TensorSpec | None) -> bool:
    """Return whether all operands that are present are float32."""
    return all(operand is None or operand.dtype == "float32" for operand in operands)


def elements(operand: TensorSpec | None) -> int:
    """Return the number of elements of a tensor, or 0 if it is absent."""
    return 0 if operand is None else prod(operand.shape)


def up(value: int, tile: int) -> int:
    """Return a value rounded up to a multiple of a tile."""
    return -(-value // tile) * tile
