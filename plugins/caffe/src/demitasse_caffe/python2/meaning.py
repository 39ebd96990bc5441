"""Operations that meant something else in Python 2 than in Python 3; see translation."""

from __future__ import annotations

import functools
import io
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from demitasse_caffe.python2.text_and_bytes import StringIO as StringIO
from demitasse_caffe.python2.text_and_bytes import called as called
from demitasse_caffe.python2.text_and_bytes import opened

file = open = opened
"""The builtin and its older name."""

_ORDERS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def divided(a: Any, b: Any) -> Any:
    """Return ``a / b``, rounded down if both are integers or arrays of integers."""
    return a // b if _is_whole(a) and _is_whole(b) else a / b


class Divisor:
    """Makes ``a //= Divisor(b)`` compute what ``a /= b`` did; an array is changed in place."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __array_ufunc__(self, ufunc: Any, method: str, other: Any, divisor: Any, **about: Any) -> Any:
        return self.__rfloordiv__(other)

    def __rfloordiv__(self, other: Any) -> Any:
        if not isinstance(other, np.ndarray):
            return divided(other, self._value)
        if _is_whole(other):
            # If the divisor is not an integer, the quotient was truncated when it was stored.
            np.copyto(other, divided(other, self._value), casting="unsafe")
        else:
            other /= self._value
        return other


def ordered(order: str, a: Any, b: Any) -> Any:
    """Compare two values by ``order``, for example ``<``. Values that cannot be compared are ordered by
    kind: None first, then numbers."""
    try:
        return _ORDERS[order](a, b)
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is not None:
            raise  # raised within a comparison that a class defines
        return _ORDERS[order](_kind(a), _kind(b))


def cmp(a: Any, b: Any) -> int:
    """Return -1, 0 or 1 if the first value is less than, equal to or greater than the second."""
    return int(bool(ordered(">", a, b))) - int(bool(ordered("<", a, b)))


def in_order(values: Iterable[Any], *given: Any, **options: Any) -> list[Any]:
    """Return ``sorted(values, cmp, key, reverse)``."""
    return sorted(values, **_keyed(given, options))


def put_in_order(values: Any, *given: Any, **options: Any) -> Any:
    """Do ``values.sort(cmp, key, reverse)`` for a list; call the method ``sort`` of anything else."""
    if isinstance(values, list):
        return values.sort(**_keyed(given, options))
    return values.sort(*given, **options)


def _keyed(given: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    named = {**dict(zip(("cmp", "key", "reverse"), given, strict=False)), **options}
    compare, key = named.pop("cmp", None), named.pop("key", None)
    if compare is not None:
        order, value = functools.cmp_to_key(compare), key
        key = order if value is None else lambda each: order(value(each))
    return {"key": key, **named}


def advanced(iterator: Any) -> Any:
    """Return ``iterator.next()``. Cursors of databases also have this method, although they
    are not iterators."""
    is_none = hasattr(iterator, "next") and not hasattr(iterator, "__next__")
    return iterator.next() if is_none else next(iterator)


def message_of(owner: Any) -> Any:
    """Return ``owner.message``, which was an exception's only argument."""
    if isinstance(owner, BaseException) and not hasattr(owner, "message"):
        return owner.args[0] if len(owner.args) == 1 else ""
    return owner.message


def rounded(number: Any, digits: int = 0) -> Any:
    """Return ``round(number, digits)`` as a float, with halves rounded away from zero."""
    if not isinstance(number, int | float | np.integer | np.floating) or not math.isfinite(number):
        return round(number, digits)
    value, scale = float(number), 10.0**digits
    made = math.copysign(math.floor(abs(value) * scale + 0.5), value) / scale
    # If the product itself was rounded up to a half, the other candidate is nearer.
    nearest = round(value, digits)
    return made if abs(made - value) <= abs(nearest - value) else nearest


def binary(file: Any) -> Any:
    """Return a binary view of a file that was opened without a ``b``, which made no
    difference in Python 2."""
    return _Bytes(file) if isinstance(file, io.TextIOWrapper) else file


class _Bytes:
    """The bytes of a text file, which stays open as long as this object exists."""

    def __init__(self, text: io.TextIOWrapper) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return getattr(self._text.buffer, name)


def bytes_of(value: Any) -> Any:
    """Return ``value.tostring()``, which arrays and images now call ``tobytes``."""
    return value.tostring() if hasattr(value, "tostring") else value.tobytes()


def _is_whole(value: Any) -> bool:
    if isinstance(value, int):
        return True
    return isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "iub"


def _kind(value: Any) -> tuple[int, str]:
    if value is None:
        return (0, "")
    number = isinstance(value, int | float | np.number)
    return (1, "") if number else (2, type(value).__name__)
