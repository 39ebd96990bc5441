"""Access to a net's parameters and blobs by name, as NumPy arrays in logical order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import numpy as np

from demitasse import Buffer, ModelError, Plan, Rooted, unknown
from demitasse_training import parameters
from demitasse_training.graph import NetGraph

T = TypeVar("T")


@dataclass(frozen=True, repr=False)
class Blob(Rooted):
    """A named tensor of a net: its ``shape``, and its values if the plan keeps them. NumPy converts it
    to an array of its ``data``."""

    elsewhere = "numpy.array(blob) is a copy of its values"
    name: str
    shape: tuple[int, ...]
    _views: Views = field(compare=False)

    def __repr__(self) -> str:
        return f"<blob {self.name} {extents(self.shape)}, {self.dtype}>"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The data type of its elements."""
        return np.dtype(self._views.graph.blobs[self.name].dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype=dtype, copy=copy)

    @property
    def data(self) -> np.ndarray:
        """The values: a live view if the layout is plain. If a layer finds a varying number of rows,
        only the rows found, although ``shape`` has room for more. Raises ModelError if the plan lets
        other blobs use the memory."""
        return self._views.there(self.name)

    @property
    def diff(self) -> np.ndarray:
        """The gradient of the objective; only in training, with ``retain="all"``."""
        return self._views.values(self.name, f"d{self.name}")


class UnknownNameError(ModelError, KeyError):
    """A name that a net does not have; also a KeyError, for code that looks names up in a mapping."""

    __str__ = Exception.__str__  # a KeyError would show the sentence in quotation marks


class Named(dict[str, T]):
    """Objects of a ``kind`` by name. Raises UnknownNameError, which suggests the nearest name."""

    def __init__(self, kind: str, items: Mapping[str, T]) -> None:
        super().__init__(items)
        self._kind = kind

    def __missing__(self, name: str) -> T:
        raise UnknownNameError(
            unknown(self._kind, str(name), self, rest="which list() of this mapping gives")
        )


class Owned(Named[T]):
    """A net's objects by name. Raises ModelError on attempts to replace them, which would have no
    effect; a copy can be changed."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Named, (self._kind, dict(self))

    def _fixed(self, *_: Any, **__: Any) -> NoReturn:
        raise ModelError(_INSTEAD.format(f"any {self._kind} of a net"))

    __setitem__ = __delitem__ = __ior__ = _fixed
    update = setdefault = pop = popitem = clear = _fixed


class Arrays(list[np.ndarray]):
    """The arrays of a net's layer. It prints their shapes, and its copy is a plain list. Raises
    ModelError on attempts to replace arrays, which would have no effect."""

    def __repr__(self) -> str:
        return f"[{', '.join(f'<array {extents(each.shape)}, {each.dtype}>' for each in self)}]"

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def _fixed(self, *_: Any, **__: Any) -> NoReturn:
        raise ModelError(_INSTEAD.format("an array of a net's layer"))

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _fixed
    append = extend = insert = pop = remove = clear = sort = reverse = _fixed


_INSTEAD = (
    "{} cannot be replaced; write to its values: params['ip1'][0][...] = values, "
    "blobs['data'].data[...] = values (with retain='all' if they are read-only)"
)


def named_parameters(graph: NetGraph, plan: Plan, flat: Any) -> dict[str, list[np.ndarray]]:
    """Return parameters by layer name, as ``parameters.by_layer`` views them, for users of a net."""
    layers = parameters.by_layer(graph, plan, flat).items()
    return Owned("layer with parameters", {name: Arrays(arrays) for name, arrays in layers})


def extents(shape: Sequence[int]) -> str:
    """Return a shape as people write it: ``64x1x28x28``."""
    return "x".join(map(str, shape)) or "scalar"


@dataclass(frozen=True, repr=False)
class Views(Rooted):
    """A planned net's parameters and blobs by name. ``_shown`` is called when a user gets parameters, to
    which the user may write from then on."""

    elsewhere = "copy.deepcopy(net.params) is a copy of its parameters"
    graph: NetGraph
    plan: Plan
    _flat: Any
    _array: Callable[[Buffer], Any]
    _retain_all: bool
    _shown: Callable[[], None] | None = None

    def __repr__(self) -> str:
        about = f"{len(self.graph.blobs)} blobs, {self.plan.parameters:,} parameters"
        return f"<{' '.join(filter(None, ('net', self.plan.name)))} ({self.plan.phase}), {about}>"

    @property
    def params(self) -> dict[str, list[np.ndarray]]:
        """Parameters by layer name: live views if their layouts are plain, otherwise read-only copies.
        With ``retain="all"``, all are live."""
        if self._shown is not None:
            self._shown()
        return named_parameters(self.graph, self.plan, self._flat)

    @property
    def blobs(self) -> dict[str, Blob]:
        """Blobs by name."""
        blobs = self.graph.blobs.items()
        return Owned("blob", {name: Blob(name, t.shape, self) for name, t in blobs})

    def there(self, blob: str) -> np.ndarray:
        """The values of a blob, without planned rows that its layer did not fill."""
        values = self.values(blob, blob)
        found = self.graph.found.get(self.graph.blobs[blob])
        return values if found is None else found(values)

    def values(self, blob: str, key: str) -> np.ndarray:
        """The values, in planned shape, of buffer ``key``, which belongs to ``blob``."""
        if blob not in self.graph.blobs:
            raise ModelError(unknown("blob", blob, self.graph.blobs, rest="which list(net.blobs) gives"))
        kept = key in self.plan.outputs or self.graph.blobs[blob].kind in ("input", "constant")
        if key not in self.plan.buffers or not (self._retain_all or (kept and key == blob)):
            raise ModelError(
                f"blob {blob!r} shares its memory with others; plan the net with retain='all' to "
                f"look at {'its values' if key == blob else 'its gradient'}"
            )
        buffer = self.plan.outputs.get(key, self.plan.buffers[key])
        return buffer.spec.layout.unpack(np.asarray(self._array(buffer)), buffer.spec.shape)
