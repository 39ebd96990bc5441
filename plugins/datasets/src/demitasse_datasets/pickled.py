"""CIFAR's Python batches (``data_batch_1`` of cifar-10-python.tar.gz): pickles, read without running any
code.

A pickle is a program for a stack machine. Here, the instructions with which batches are written, by any
version of Python and NumPy, only assemble plain values. Names of functions remain names. Any other
instruction or name is an error.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from demitasse import DataError
from demitasse_datasets.files import SampleFile

ELEMENTS = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8")


class _Name(NamedTuple):
    """A Python function or class that a pickle names; it is never looked up."""

    module: str
    name: str


@dataclass
class _Array:
    values: np.ndarray | None = None


@dataclass
class _Element:
    code: str
    order: str = "|"


def is_pickled(path: Path) -> bool:
    """Whether a file begins as pickles of protocols 2 to 5 do."""
    try:
        with SampleFile(path) as file:
            return begins_pickle(file.read(2))
    except DataError:
        return False


def begins_pickle(data: bytes | bytearray) -> bool:
    """Whether bytes begin with the instruction that announces a protocol from 2 to 5."""
    return len(data) > 1 and data[0] == 0x80 and 2 <= data[1] <= 5


def read_batch(path: Path, data: bytes | bytearray) -> Mapping[str, np.ndarray]:
    """Return the arrays of a batch by name: ``data`` (samples, 3072) uint8, and each list of labels.
    Raises DataError for a pickle of anything else."""
    try:
        found = _Machine().run(bytes(data))
    except DataError as error:
        raise DataError(
            f"{path}: a pickle is a program, so only the parts that CIFAR's batches have are read, and "
            f"nothing is run: {error}"
        ) from error
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise DataError(f"{path}: its pickle is cut off or damaged ({error})") from error
    batch = {_text(key): value for key, value in found.items()} if isinstance(found, dict) else {}
    pixels = batch.get("data")
    if not isinstance(pixels, _Array) or pixels.values is None:
        names = ", ".join(sorted(batch)) or type(found).__name__
        raise DataError(f"{path}: is a pickle, but not a batch of CIFAR's: no 'data' (it has {names})")
    arrays = {"data": pixels.values}
    for name, value in batch.items():
        if name == "labels" or name.endswith("_labels"):
            arrays[name] = _numbers(path, name, value)
    return arrays


def _numbers(path: Path, name: str, value: Any) -> np.ndarray:
    if isinstance(value, _Array) and value.values is not None:
        return value.values
    limit = 1 << 31
    if not isinstance(value, list) or not all(isinstance(n, int) and -limit < n < limit for n in value):
        raise DataError(
            f"{path}: its {name!r} is not a list of labels, whole numbers of at most 32 bits"
        )
    return np.array(value, np.int64)


def _text(key: Any) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else str(key)


class _Machine:
    """The stack, the memo, and the instructions, each a method or an entry of a table."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """Run a pickle and return its result. Raises DataError for an instruction or name that batches
        do not contain, and ValueError and others for damaged data."""
        for opcode, argument, _ in pickletools.genops(data):
            name = opcode.name
            if name in _PUSHED:
                self._stack.append(argument)
            elif name in _MADE:
                self._stack.append(_MADE[name]())
            elif name in _DONE:
                _DONE[name](self, argument)
            elif name == "STOP":
                return self._stack.pop()
            elif name not in ("PROTO", "FRAME"):
                raise DataError(f"the instruction {name} is not one of them")
        raise ValueError("it has no end")

    def _since_mark(self) -> list[Any]:
        at = self._marks.pop()
        taken = self._stack[at:]
        del self._stack[at:]
        return taken

    def mark(self, argument: Any) -> None:
        self._marks.append(len(self._stack))

    def remember(self, argument: Any) -> None:
        self._memo[len(self._memo) if argument is None else argument] = self._stack[-1]

    def recall(self, argument: Any) -> None:
        self._stack.append(self._memo[argument])

    def short_tuple(self, length: int) -> None:
        if length > len(self._stack):
            raise ValueError("its stack is empty")
        taken = tuple(self._stack[-length:])
        del self._stack[-length:]
        self._stack.append(taken)

    def marked_tuple(self, argument: Any) -> None:
        self._stack.append(tuple(self._since_mark()))

    def marked_list(self, argument: Any) -> None:
        self._stack.append(self._since_mark())

    def marked_mapping(self, argument: Any) -> None:
        items = self._since_mark()
        self._stack.append(dict(zip(items[::2], items[1::2], strict=True)))

    def append(self, argument: Any) -> None:
        item = self._stack.pop()
        self._stack[-1].append(item)

    def extend(self, argument: Any) -> None:
        items = self._since_mark()
        self._stack[-1].extend(items)

    def set_item(self, argument: Any) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._stack[-1][key] = value

    def set_items(self, argument: Any) -> None:
        items = self._since_mark()
        self._stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def named(self, argument: Any) -> None:
        self._stack.append(_Name(*argument.split(" ", 1)))

    def named_on_stack(self, argument: Any) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        self._stack.append(_Name(module, name))

    def call(self, argument: Any) -> None:
        """Do what one of the few functions that pickled arrays and bytes name would do."""
        given, function = self._stack.pop(), self._stack.pop()
        module, name = function
        root, _, last = module.rpartition(".")
        if function == ("_codecs", "encode"):
            self._stack.append(given[0].encode(given[1]))
        elif function == ("numpy", "dtype"):
            self._stack.append(_Element(_element(given[0])))
        elif root in ("numpy.core", "numpy._core") and (last, name) == ("multiarray", "_reconstruct"):
            self._stack.append(_Array())
        elif root in ("numpy.core", "numpy._core") and (last, name) == ("numeric", "_frombuffer"):
            content, element, shape, order = given
            self._stack.append(_Array(_array(content, element, shape, order)))
        else:
            raise DataError(f"{module}.{name} is not one of them")

    def build(self, argument: Any) -> None:
        state, target = self._stack.pop(), self._stack[-1]
        if isinstance(target, _Element):
            target.order = _text(state[1])
        elif isinstance(target, _Array):
            _, shape, element, by_columns, content = state
            target.values = _array(content, element, shape, "F" if by_columns else "C")
        else:
            raise DataError(f"the state of a {type(target).__name__} is not one of them")


_PUSHED = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "STRING", "BINSTRING"),
        *("SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)
_MADE: Mapping[str, Callable[[], Any]] = {
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
_DONE: Mapping[str, Callable[[_Machine, Any], None]] = {
    "MARK": _Machine.mark,
    "MEMOIZE": _Machine.remember,
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _Machine.remember),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), _Machine.recall),
    "TUPLE": _Machine.marked_tuple,
    "TUPLE1": lambda machine, argument: machine.short_tuple(1),
    "TUPLE2": lambda machine, argument: machine.short_tuple(2),
    "TUPLE3": lambda machine, argument: machine.short_tuple(3),
    "LIST": _Machine.marked_list,
    "DICT": _Machine.marked_mapping,
    "APPEND": _Machine.append,
    "APPENDS": _Machine.extend,
    "SETITEM": _Machine.set_item,
    "SETITEMS": _Machine.set_items,
    "GLOBAL": _Machine.named,
    "STACK_GLOBAL": _Machine.named_on_stack,
    "REDUCE": _Machine.call,
    "BUILD": _Machine.build,
}


def _element(code: Any) -> str:
    text = _text(code)
    if text not in ELEMENTS:
        raise DataError(f"elements of type {text[:20]!r} are not among them ({', '.join(ELEMENTS)})")
    return text


def _array(content: Any, element: _Element, shape: Any, order: Any) -> np.ndarray:
    """Return the array stored in these bytes; Python 2 wrote them as a string."""
    held = content.encode("latin-1") if isinstance(content, str) else content
    values = np.frombuffer(held, np.dtype((">" if element.order == ">" else "<") + element.code))
    return values.reshape(shape, order="F" if _text(order) == "F" else "C")
