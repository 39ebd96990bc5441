"""A user's object behind a layer: its blobs, and calls of its methods on a plan's arrays."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import DataError, ModelError, ShapeError
from demitasse_python_layer.blob import LayerBlob, ParameterBlobs
from demitasse_python_layer.faults import told
from demitasse_python_layer.finding import instance

Shape = tuple[int, ...]


class Phase(int):
    """The phase, 0 in training and 1 in tests as in Caffe. As a string it is TRAIN or TEST, which layers
    of Fast and Faster R-CNN's forks rely on."""

    def __str__(self) -> str:
        return "TEST" if self else "TRAIN"


class UserLayer:
    """An object (``object``) of class ``layer`` of ``module``, set up for bottoms of some shapes.

    ``tops`` are their names. ``in_place`` maps the numbers of tops to those of bottoms with which they
    share a blob. ``net`` is the file that names the class, ``where`` the line and layer.

    Raises ValueError if the module or class is missing, or if the class lacks a method. What the object
    raises becomes a ModelError while it is planned and in backward, and a DataError in forward. Each
    error names the layer, the method and the line of the user's code.
    """

    def __init__(
        self,
        module: str,
        layer: str,
        param_str: str,
        phase: int,
        tops: Sequence[str],
        dtype: str,
        where: str,
        net: str = "",
        in_place: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.object = instance(module, layer, net)
        self._dtype, self._where, self._names = dtype, f"{where}: {module}.{layer}", tuple(tops)
        self.parameters = ParameterBlobs(dtype)
        self.object.param_str = self.object.param_str_ = param_str  # its name until 2015
        self.object.phase = Phase(phase)
        self.object.blobs = self.parameters
        if not hasattr(self.object, "type"):
            self.object.type = "Python"
        self.bottoms: list[LayerBlob] = []
        self.tops = [LayerBlob(dtype=dtype) for _ in tops]
        self._in_place = dict(in_place)
        self._ready, self._ahead = False, False
        self._held: list[np.ndarray | None] = []
        self.unplanned = ""
        """The method that last gave the tops shapes that differ from the plan's; empty if none did."""
        self._turn = threading.Lock()

    def __repr__(self) -> str:
        return f"<{self._where}>"

    @property
    def tells_late(self) -> bool:
        """Whether ``reshape`` does nothing, so that ``forward`` may give its tops other shapes. False if
        all tops are in place, since they have the shapes of the bottoms."""
        if len(self._in_place) == len(self.tops):
            return False
        code = getattr(self.object.reshape, "__code__", None)
        return (
            code is not None and not code.co_names and not code.co_freevars and len(code.co_consts) <= 2
        )

    @property
    def top_shapes(self) -> tuple[Shape, ...]:
        """The shapes of the tops that ``reshape`` last set."""
        return tuple(top.shape for top in self.tops)

    def plan(self, shapes: Sequence[Shape]) -> None:
        """Let the object set the shapes of its tops for bottoms of ``shapes``; call its ``setup`` first
        if necessary."""
        self.bottoms = [LayerBlob(shape, self._dtype) for shape in shapes]
        for top, bottom in self._in_place.items():
            self.tops[top] = self.bottoms[bottom]
            self.tops[top].given = True
        self.unplanned = ""
        if not self._ready:
            if hasattr(self.object, "setup"):
                self._call("setup", self.bottoms, self.tops)
            self._ready = True
        if not self._ahead:
            self._call("reshape", self.bottoms, self.tops)

    def reshaped(self) -> bool:
        """Let a layer without bottoms compute the result of the next forward pass in advance. Return
        whether ``reshape`` or ``forward`` gave its tops other shapes than the last time."""
        if self.bottoms:
            return False
        with self._turn:
            before = self.top_shapes
            self._make()
            self._ahead = True
            return self.top_shapes != before

    def hold(self) -> None:
        """Store the results of all later forward passes in separate memory as well: a plan may reuse the
        memory of the tops before ``keep`` is called."""
        self._held = [None] * len(self.tops)

    def keep(self) -> None:
        """Make the next forward pass return the last result without calling the object. Call ``hold``
        before it."""
        with self._turn:
            for number, top in enumerate(self.tops):
                held = self._held[number]
                top.place(np.array(top.data) if held is None else held)
            self._ahead = True

    def forget(self) -> None:
        """Make the next forward pass call the object, whatever was held and kept."""
        self._held, self._ahead = [], False

    def forward(self, bottoms: Sequence[Any], parameters: Sequence[Any], tops: Sequence[Any]) -> None:
        """Call ``reshape`` and ``forward`` on a plan's arrays. Raise ShapeError if the shape of a top
        differs from the plan's."""
        with self._turn:
            if self._ahead:
                self._ahead = False
                self._deliver("forward", tops)
                return
            self._held = [None] * len(self._held)
            _attach(self.bottoms, bottoms)
            _attach(self.parameters, parameters)
            for top, bottom in self._in_place.items():
                np.copyto(tops[top], bottoms[bottom])
            _attach(self.tops, tops)
            self._make(tops)
            self._deliver("forward", tops)

    def backward(
        self,
        dtops: Sequence[Any],
        tops: Sequence[Any],
        bottoms: Sequence[Any],
        parameters: Sequence[Any],
        made: Sequence[Any],
        wanted: Sequence[bool],
    ) -> None:
        """Call ``backward``; ``made`` are the arrays for the gradients of bottoms and parameters."""
        with self._turn:
            _attach(self.tops, tops, dtops)
            changed, dbottoms = list(bottoms), list(made[: len(bottoms)])
            for top, bottom in self._in_place.items():  # the bottom already has the top's values
                changed[bottom] = tops[top]
                dbottoms[bottom] = np.empty_like(tops[top]) if made[bottom] is None else made[bottom]
                dbottoms[bottom][...] = dtops[top]
            _attach(self.bottoms, changed, dbottoms)
            _attach(self.parameters, parameters, made[len(bottoms) :])
            for blob in self.parameters:
                blob.diff[...] = 0  # the plan adds it to the results of other passes
            self._call("backward", self.tops, list(wanted[: len(bottoms)]), self.bottoms)

    def _deliver(self, method: str, tops: Sequence[Any]) -> None:
        """Put a plan's arrays, with the results of a method, in place of the tops' own."""
        planned = tuple(top.shape for top in tops)
        if self.top_shapes != planned:
            self.unplanned = method
            who = "nets, and trainers with one worker whose class has a reshape that does nothing,"
            raise ShapeError(
                f"{self._where}: {method} made tops of {self.top_shapes}, but {planned} is planned; "
                f"only {f'{who} follow' if self.bottoms else 'a single worker follows'} such changes"
            )
        for number, (blob, array) in enumerate(zip(self.tops, tops, strict=True)):
            own = blob.data
            if own is not array:
                array[...] = own
                blob.place(array)
            if self._held and method == "forward":
                self._held[number] = np.array(array) if own is array else own

    def _make(self, tops: Sequence[Any] | None = None) -> None:
        """Let the object reshape its tops and fill them. Raise DataError for what it raises."""
        try:
            self._call("reshape", self.bottoms, self.tops)
            if tops is not None:
                self._deliver("reshape", tops)
            self._call("forward", self.bottoms, self.tops)
        except ShapeError:
            raise
        except ModelError as error:
            raise DataError(str(error)) from error.__cause__

    def _call(self, method: str, *given: Any) -> None:
        """Call a method of the user's object. Raise ModelError for what it raises."""
        try:
            getattr(self.object, method)(*given)
        except MemoryError:
            raise
        except (
            Exception,
            SystemExit,
        ) as error:  # sys.exit may be called by a reader that has reached its end
            about = told(error, self.object.param_str if method == "setup" else None)
            bare = [name for name, top in zip(self._names, self.tops, strict=True) if not top.given]
            if bare and method in ("forward", "backward"):
                about += f"; neither setup nor reshape gives top {bare[0]!r} a shape (top[...].reshape)"
            raise ModelError(f"{self._where}.{method} raised {about}") from error


def _attach(blobs: Any, arrays: Sequence[Any], diffs: Sequence[Any] = ()) -> None:
    """Replace the arrays of blobs by a plan's arrays."""
    for number, (blob, array) in enumerate(zip(blobs, arrays, strict=True)):
        diff = diffs[number] if number < len(diffs) else None
        if diff is None and blob.diff.shape != array.shape:
            diff = np.zeros_like(array)
        blob.place(array, diff)
