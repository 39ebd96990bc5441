"""Looking at a net: its parameters and blobs by name, as NumPy arrays in logical order."""

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
    """A named tensor of a net: its ``shape``, and its values where the plan keeps them. NumPy takes it
    as an array of its ``data``."""

    elsewhere = "numpy.array(blob) is a copy of its values"
    name: str
    shape: tuple[int, ...]
    _views: Views = field(compare=False)

    def __repr__(self) -> str:
        return f"<blob {self.name} {extents(self.shape)}, {self.dtype}>"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return np.dtype(self._views.graph.blobs[self.name].dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.data, dtype=dtype, copy=copy)

    @property
    def data(self) -> np.ndarray:
        """The values, a live view where the layout is plain; of what a layer finds as many rows as it
        has found, where ``shape`` has room for more. Raises ModelError when the plan lets other blobs
        use the memory."""
        return self._views.there(self.name)

    @property
    def diff(self) -> np.ndarray:
        """The gradient of the objective. Only with ``retain="all"``, and in training."""
        return self._views.values(self.name, f"d{self.name}")


class UnknownNameError(ModelError, KeyError):
    """A name that a net does not have; a KeyError to whoever looks names up in a mapping."""

    __str__ = Exception.__str__  # not a KeyError's, which shows a sentence in quotation marks


class Named(dict[str, T]):
    """What there is of a ``kind``, by name. Raises UnknownNameError, which tells the nearest."""

    def __init__(self, kind: str, items: Mapping[str, T]) -> None:
        super().__init__(items)
        self._kind = kind

    def __missing__(self, name: str) -> T:
        raise UnknownNameError(
            unknown(self._kind, str(name), self, rest="which list() of this mapping gives")
        )


class Owned(Named[T]):
    """What a net has. Raises ModelError for what would put something else in its place, to no effect;
    whose a copy is may do that."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Named, (self._kind, dict(self))

    def _fixed(self, *_: Any, **__: Any) -> NoReturn:
        raise ModelError(_INSTEAD.format(f"any {self._kind} of a net"))

    __setitem__ = __delitem__ = __ior__ = _fixed
    update = setdefault = pop = popitem = clear = _fixed


class Arrays(list[np.ndarray]):
    """The arrays of a net's layer; it prints their shapes, and a copy is a plain list. Raises ModelError
    for what would put others in their place, to no effect."""

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
    """Parameters by layer name, as ``parameters.by_layer`` views them, for who looks at a net."""
    layers = parameters.by_layer(graph, plan, flat).items()
    return Owned("layer with parameters", {name: Arrays(arrays) for name, arrays in layers})


def extents(shape: Sequence[int]) -> str:
    """A shape as people say it: ``64x1x28x28``."""
    return "x".join(map(str, shape)) or "scalar"


@dataclass(frozen=True, repr=False)
class Views(Rooted):
    """A planned net's parameters and blobs by name. ``_shown`` is told that somebody has parameters, who
    may write to them from now on."""

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
        """Parameters by layer name: live views where layouts are plain,
        else read-only copies; with ``retain="all"`` all are live."""
        if self._shown is not None:
            self._shown()
        return named_parameters(self.graph, self.plan, self._flat)

    @property
    def blobs(self) -> dict[str, Blob]:
        """Blobs by name."""
        blobs = self.graph.blobs.items()
        return Owned("blob", {name: Blob(name, t.shape, self) for name, t in blobs})

    def there(self, blob: str) -> np.ndarray:
        """The values of a blob, without rows that its layer had planned and did not fill."""
        values = self.values(blob, blob)
        found = self.graph.found.get(self.graph.blobs[blob])
        return values if found is None else found(values)

    def values(self, blob: str, key: str) -> np.ndarray:
        """The values of buffer ``key``, which belongs to ``blob``, as they were planned."""
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
