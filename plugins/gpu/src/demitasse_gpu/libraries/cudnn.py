"""cuDNN's graphs, through the C interface of version 9 (cudnn_graph.h): tensors, operations on them, the
engines that its heuristics propose, and plans that run."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from demitasse import PlanError
from demitasse_gpu.libraries.loading import library
from demitasse_gpu.libraries.remembered import Choices
from demitasse_gpu.libraries.tiles import signature
from demitasse_gpu.problems import explained

if TYPE_CHECKING:
    from demitasse_gpu.device import Device
    from demitasse_gpu.libraries.held import Proof

# cudnnBackendDescriptorType_t.
POINTWISE, CONVOLUTION, ENGINE, ENGINE_CONFIG, HEURISTICS, PLAN = 0, 1, 2, 3, 4, 5
FORWARD, BACKWARD_WEIGHTS, BACKWARD_DATA, ON_EACH = 10, 11, 12, 13
GRAPH, VARIANT, TENSOR = 15, 16, 17
# cudnnBackendAttributeType_t, and the C type of each.
KINDS: dict[str, tuple[int, Any]] = {
    "handle": (0, ctypes.c_void_p),
    "data type": (1, ctypes.c_int),
    "boolean": (2, ctypes.c_bool),
    "int64": (3, ctypes.c_int64),
    "float": (4, ctypes.c_float),
    "double": (5, ctypes.c_double),
    "pointer": (6, ctypes.c_void_p),
    "convolution mode": (7, ctypes.c_int),
    "heuristics mode": (8, ctypes.c_int),
    "numerical note": (11, ctypes.c_int),
    "NaN propagation": (10, ctypes.c_int),
    "pointwise mode": (14, ctypes.c_int),
    "descriptor": (15, ctypes.c_void_p),
    "graph retention": (33, ctypes.c_int),
}
TYPES = {"float32": 0, "float64": 1, "bfloat16": 9}
"""cudnnDataType_t of the elements."""
CROSS_CORRELATION, ADD, RELU = 1, 0, 100
PROPAGATE = 1
MODES = (3, 2)
"""Decision-tree heuristics, then the fallback engines, which always work."""
TENSOR_CORE, DOWN_CONVERTED, REDUCED, NONDETERMINISTIC = 0, 1, 2, 4
"""cudnnBackendNumericalNote_t: what an engine says about its numerics."""
OUT_OF_MEMORY = (4003, 4004)
ASKED = 100
"""How many configurations the heuristics are asked for: the first dozens are no use in exact float32."""
ALIGNMENT = 16
RETAINING, NOT_RETAINED = 92800, 1
"""From this version on a graph retains what it needs of a plan, and takes longer to launch because of
that, unless the plan says that somebody else does it (cudnnCudaGraphRetention_t). Here the captured
calls do."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a graph: its number in the graph, extents and strides in elements (in logical order),
    its element type, and whether it is virtual: exists only between two operations."""

    number: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    virtual: bool = False


def strides_of(extents: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides, in elements, of dimensions in the memory order ``order``, outermost first; ()
    is the logical order."""
    strides, size = [0] * len(extents), 1
    for dimension in reversed(order or range(len(extents))):
        strides[dimension] = size
        size *= extents[dimension]
    return tuple(strides)


class Descriptor:
    """One of cuDNN's descriptors, with those that it refers to."""

    def __init__(self, owner: Cudnn, kind: int) -> None:
        self._owner, self.value = owner, ctypes.c_void_p()
        self._held: list[object] = []
        owner.call("cudnnBackendCreateDescriptor", kind, ctypes.byref(self.value))

    def set(self, attribute: int, kind: str, *values: Any) -> Descriptor:
        """Set an attribute's values."""
        number, of = KINDS[kind]
        self._held.append(values)
        plain = [value.value if isinstance(value, Descriptor) else value for value in values]
        array = (of * len(plain))(*plain)
        count = ctypes.c_int64(len(plain))
        self._owner.call("cudnnBackendSetAttribute", self.value, attribute, number, count, array)
        return self

    def finalise(self) -> Descriptor:
        """Finalise and check the descriptor. Raises PlanError if cuDNN does not support it."""
        self._owner.call("cudnnBackendFinalize", self.value)
        return self

    def get(self, attribute: int, kind: str, most: int = 1) -> list[Any]:
        """Return at most ``most`` values of an attribute."""
        number, of = KINDS[kind]
        values, count = (of * most)(), ctypes.c_int64(0)
        asked = attribute, number, ctypes.c_int64(most), ctypes.byref(count), values
        self._owner.call("cudnnBackendGetAttribute", self.value, *asked)
        return list(values[: count.value])

    def get_descriptors(self, attribute: int, of: int, most: int) -> list[Descriptor]:
        """Return at most ``most`` descriptors of kind ``of`` that make up an attribute."""
        made = [Descriptor(self._owner, of) for _ in range(most)]
        values = (ctypes.c_void_p * most)(*(each.value for each in made))
        number, count = KINDS["descriptor"][0], ctypes.c_int64(0)
        asked = attribute, number, ctypes.c_int64(most), ctypes.byref(count), values
        self._owner.call("cudnnBackendGetAttribute", self.value, *asked)
        return made[: count.value]

    def __del__(self) -> None:
        self._owner.destroy(self.value)


class Plan:
    """An engine for a graph, ready to run, and the bytes of scratch memory that it needs."""

    def __init__(self, owner: Cudnn, config: Descriptor) -> None:
        self._owner = owner
        self._plan = owner.of_device(Descriptor(owner, PLAN), PLAN)
        if owner.version >= RETAINING:
            self._plan.set(408, "graph retention", NOT_RETAINED)
        self._plan.set(401, "descriptor", config).finalise()
        (self.workspace,) = self._plan.get(402, "int64")

    def bind(self, tensors: Sequence[Tensor], addresses: Sequence[int], workspace: int) -> Descriptor:
        """Return a pack of the addresses of the tensors that are not virtual, and of scratch memory."""
        pack = Descriptor(self._owner, VARIANT)
        pack.set(1000, "int64", *(tensor.number for tensor in tensors))
        pack.set(1001, "pointer", *addresses)
        return pack.set(1003, "pointer", workspace).finalise()

    def run(self, pack: Descriptor) -> None:
        """Run the plan in the library's stream."""
        self._owner.call("cudnnBackendExecute", self._owner.handle, self._plan.value, pack.value)


class Cudnn:
    """The library, opened for one device and its default stream."""

    def __init__(self, device: Device, loaded: Any = None) -> None:
        found = loaded or library("cudnn")
        if found is None:
            raise PlanError("cuDNN was not found")
        if loaded is None:
            found.cudnnGetErrorString.restype = ctypes.c_char_p
        self.device, self._library = device, found
        self.handle = ctypes.c_void_p()
        self.call("cudnnCreate", ctypes.byref(self.handle))
        self.call("cudnnSetStream", self.handle, ctypes.c_void_p(device.stream))
        name = f"convolutions-{signature()}-cudnn-{self.version}"
        self.chosen = Choices(device, name if loaded is None else "")
        self.sizes: dict[Any, dict[int, str]] = {}
        """The fastest way by the number of an image's points, for each convolution without its size."""

        self.proofs: dict[Any, Proof] = {}
        """The proofs of our own kernels that were chosen in this process."""

        self.known: dict[Any, weakref.WeakValueDictionary[str, Plan]] = {}
        """Plans in use, by what they compute. Those that were only tried are not kept, as each has code
        on the device."""

    @property
    def version(self) -> int:
        """Its version; 92801 is 9.28.1."""
        return int(self._library.cudnnGetVersion())

    def call(self, name: str, *arguments: Any) -> None:
        """Call one of its functions; a handle serves one thread at a time. Raises the error that its
        status means."""
        with self.device.turn:
            status = getattr(self._library, name)(*arguments)
        if status:
            text = (self._library.cudnnGetErrorString(status) or b"").decode("utf-8", "replace")
            if status in OUT_OF_MEMORY:
                raise explained(2, text, name, self.device.space)
            raise PlanError(f"{self.device.space}: {name}: {text or status}")

    def destroy(self, descriptor: ctypes.c_void_p) -> None:
        """Destroy a descriptor, possibly a plan's, after the graphs that were captured from it."""
        self.device.driver.later(self._library.cudnnBackendDestroyDescriptor, descriptor)

    def of_device(self, made: Descriptor, kind: int) -> Descriptor:
        """Set the device of a graph, heuristics or a plan. Heuristics have it from their graph."""
        attribute = {GRAPH: 800, PLAN: 400}.get(kind)
        return made if attribute is None else made.set(attribute, "handle", self.handle)

    def tensor(self, tensor: Tensor) -> Descriptor:
        """Return a tensor's descriptor."""
        made = Descriptor(self, TENSOR).set(901, "data type", TYPES[tensor.dtype])
        made.set(902, "int64", *tensor.extents).set(903, "int64", *tensor.strides)
        made.set(906, "int64", tensor.number).set(900, "int64", ALIGNMENT)
        return made.set(907, "boolean", tensor.virtual).finalise()

    def convolution(
        self, kind: int, x: Tensor, w: Tensor, y: Tensor, geometry: Sequence[Sequence[int]]
    ) -> Descriptor:
        """Return a convolution. ``kind`` is FORWARD, BACKWARD_DATA or BACKWARD_WEIGHTS, which makes y, x
        or w of the other two. ``geometry`` is stride, pad and dilation. Sums are in float32."""
        stride, pad, dilation = geometry
        about = Descriptor(self, CONVOLUTION).set(100, "data type", TYPES["float32"])
        about.set(101, "convolution mode", CROSS_CORRELATION).set(106, "int64", len(stride))
        about.set(102, "int64", *dilation).set(103, "int64", *stride)
        about.set(105, "int64", *pad).set(104, "int64", *pad).finalise()
        # alpha, beta, convolution, x, w, y
        names = {
            FORWARD: (700, 701, 702, 704, 703, 705),
            BACKWARD_DATA: (706, 707, 708, 710, 709, 711),
            BACKWARD_WEIGHTS: (712, 713, 714, 716, 715, 717),
        }[kind]
        operation = Descriptor(self, kind).set(names[0], "float", 1.0).set(names[1], "float", 0.0)
        operation.set(names[2], "descriptor", about)
        for name, tensor in zip(names[3:], (x, w, y), strict=True):
            operation.set(name, "descriptor", self.tensor(tensor))
        return operation.finalise()

    def on_each(self, mode: int, x: Tensor, y: Tensor, b: Tensor | None = None) -> Descriptor:
        """Return an elementwise operation that makes y: ADD of x and b, or RELU of x."""
        about = Descriptor(self, POINTWISE).set(0, "pointwise mode", mode)
        about.set(1, "data type", TYPES["float32"])
        if mode == RELU:  # otherwise it may turn NaN into 0 and hide that a net diverged
            about.set(2, "NaN propagation", PROPAGATE)
        about.finalise()
        operation = Descriptor(self, ON_EACH).set(750, "descriptor", about)
        operation.set(751, "descriptor", self.tensor(x)).set(753, "descriptor", self.tensor(y))
        if b is not None:
            operation.set(752, "descriptor", self.tensor(b))
        return operation.finalise()

    def plans(
        self,
        operations: Sequence[Descriptor],
        limit: int,
        without: Iterable[int],
        most: int,
        only: str = "",
    ) -> dict[str, Plan]:
        """Return at most ``most`` plans for the fused operations, in the heuristics' order, by names
        that are the same in the next process; or ``only`` the one of that name. They need at most
        ``limit`` bytes, and their engines have none of the notes ``without``. Empty if cuDNN has none.
        Making a plan may take a second, in which it compiles code."""
        graph = self.of_device(Descriptor(self, GRAPH), GRAPH)
        made = dict[str, Plan]()
        try:
            graph.set(801, "descriptor", *operations).finalise()
        except PlanError:
            return made
        for mode in MODES:
            if made:  # the fallback engines are slow
                break
            for number, config in enumerate(self._configs(graph, mode)):
                name = f"{mode}.{number}"
                if only not in ("", name) or len(made) == most or self._notes(config) & set(without):
                    continue
                for plan in self._plan(config, limit):
                    made[name] = plan
        return made

    def _configs(self, graph: Descriptor, mode: int) -> list[Descriptor]:
        heuristics = self.of_device(Descriptor(self, HEURISTICS), HEURISTICS)
        heuristics.set(201, "descriptor", graph)
        heuristics.set(200, "heuristics mode", mode)
        try:
            return heuristics.finalise().get_descriptors(202, ENGINE_CONFIG, ASKED)
        except PlanError:
            return []  # there is no engine for such a graph

    def _notes(self, config: Descriptor) -> set[int]:
        (engine,) = config.get_descriptors(300, ENGINE, 1)
        return set(engine.get(1303, "numerical note", 10))

    def _plan(self, config: Descriptor, limit: int) -> list[Plan]:
        try:
            plan = Plan(self, config)
        except (PlanError, MemoryError):
            return []  # heuristics may propose what does not exist, or does not fit, here
        return [plan] if plan.workspace <= limit else []
