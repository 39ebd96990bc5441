"""Checks that kernels do what a plan relies on: every candidate for every operation of a net."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import demitasse
from demitasse import (
    Candidate,
    DataError,
    DemitasseError,
    Machine,
    Place,
    Request,
    TensorSpec,
    arrange,
    compose,
)
from demitasse_conformance.machines import PLAINEST, machine_of
from demitasse_conformance.nets import HALVES, around, opened, rounded, starting_values
from demitasse_conformance.operands import laid_out, operands
from demitasse_conformance.promises import WITHIN, BrokenPromiseError, differing, hold

if TYPE_CHECKING:
    from demitasse import Allocator, Graph, Node, Runtime, Tensor

ORACLE, ITS_OWN = "reference", "its own in f64"
Values = dict["Tensor", np.ndarray]


@dataclass(frozen=True)
class Trial:
    """A candidate that was requested in a precision, with ``threads`` threads. ``wrong`` says which
    promise it breaks ("" if none), ``untried`` why it was not tried. ``beside`` says what its numbers
    were compared with: the reference's, its plugin's own in f64, or "" if nothing."""

    operation: str
    kernel: str
    precision: str
    threads: int
    wrong: str = ""
    untried: str = ""
    beside: str = ORACLE


class Judge:
    """Tries what a plugin offers in a precision where the first worker of ``runtime`` computes."""

    def __init__(self, runtime: Runtime, plugin: str, precision: str) -> None:
        worker = arrange(runtime.machine, "float64")[0]
        self.runtime, self.plugin, self.precision = runtime, plugin, precision
        self.place, self.allocator = worker.place, runtime.allocator(worker.space)
        self._hook = dict(runtime.serving("kernels", space=self.place.space)).get(plugin)

    def offers(self, request: Request) -> Iterator[tuple[Request, Candidate | Exception]]:
        """Yield the plugin's candidates for ``request``, with one thread and with as many as the place
        has, or the exception that its hook raised, each with the request as it was made."""
        for threads in sorted({1, self.place.threads}):
            if self._hook is None:
                return
            asked = replace(request, place=replace(self.place, threads=threads))
            try:
                yield from [(asked, candidate) for candidate in self._hook(request=asked)]
            except Exception as error:  # noqa: BLE001  whatever it is, it is one trial's
                yield asked, error

    def trials(
        self,
        request: Request,
        values: Sequence[Any],
        expected: Sequence[np.ndarray] | None,
        changes: bool = False,
    ) -> Iterator[Trial]:
        """Try each candidate with ``values`` of the inputs. Compare its results with ``expected`` or, if
        that is None, with what the plugin itself computes in double precision. With ``changes``, the
        change of each updated input is compared, and in bf16 with the tolerance of single precision."""
        beside = ORACLE
        if expected is None:
            expected = self._own(request, values)
            beside = ITS_OWN if expected is not None else ""
        within = WITHIN["f32" if changes and self.precision == "bf16" else self.precision]
        for asked, offered in self.offers(request):
            about = request.operation.name, str(getattr(offered, "kernel", "")), self.precision
            try:
                if isinstance(offered, Exception):
                    raise offered
                demitasse.check_candidate(offered, asked, f"plugin {self.plugin!r}")
                if any(layout.stored.startswith("V") for layout in offered.input_layouts):
                    told = "it takes bits of its own, which a reorder of its own makes"
                    yield Trial(*about, asked.place.threads, untried=told, beside=beside)
                    continue
                with np.errstate(all="ignore"):  # an overflow shows in the numbers
                    self._hold(offered, asked, values, expected, within, changes, beside)
            except (DataError, MemoryError) as error:
                told = f"{type(error).__name__}: {error}"
                yield Trial(*about, asked.place.threads, untried=told, beside=beside)
            except (BrokenPromiseError, DemitasseError) as error:
                yield Trial(*about, asked.place.threads, str(error), beside=beside)
            except Exception as error:  # noqa: BLE001  a kernel may raise anything
                told = f"it raised {type(error).__name__}: {error}"
                yield Trial(*about, asked.place.threads, told, beside=beside)
            else:
                yield Trial(*about, asked.place.threads, beside=beside)

    def _hold(
        self,
        candidate: Candidate,
        request: Request,
        values: Sequence[Any],
        expected: Sequence[np.ndarray] | None,
        within: float,
        changes: bool,
        beside: str,
    ) -> None:
        made = applied(candidate, request, values, self.allocator)
        if expected is not None:
            before = _updated(request, values) if changes else [0.0] * len(made)
            whose = beside if beside == ITS_OWN else f"the {beside}'s"
            _compare(request, made, expected, before, within, whose)
        if beside != ORACLE:  # its own numbers would not be finite either
            for position, each in enumerate(made):
                finite = each.dtype.kind != "f" or bool(np.isfinite(each).all())
                told = "has numbers that are not finite; what was not written is NaN here"
                hold(finite, f"{_named(request, position)} {told}")
        _in_place(candidate, request, values, self.allocator, made, within)
        _in_parts(candidate, request, values, self.allocator)

    def _own(self, request: Request, values: Sequence[Any]) -> list[np.ndarray] | None:
        """Return what the plugin's first kernel computes in f64 with one thread, or None."""
        exact = _exact(request, replace(self.place, threads=1))
        try:
            for candidate in self._hook(request=exact) if self._hook is not None else ():
                return applied(candidate, exact, _wide(exact, values), self.allocator)
        except Exception:  # noqa: BLE001  what it raised is told of as a trial in f64
            return None
        return None


def check_kernels(
    plugins: Sequence[Any],
    name: str,
    net: str | Path,
    shape: Sequence[int] | None = None,
    hw: str | Path | Machine | None = None,
    precision: str = "f64",
    values: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[str]:
    """Check that every kernel that plugin ``name``, one of ``plugins``, offers for the operations of a
    net, forward and backward, does what a plan relies on. It must write all of its outputs and nothing
    beside them, and not its inputs; stay within its workspace; allow being bound and called again, and
    in place if it says so; and compute what the reference plugin computes in double precision.

    - ``net``: a prototxt's path, or the text of layers that follow a blob ``x`` of ``shape``;
    - ``values``: values of inputs, by name; others are random;
    - ``hw``: a machine whose workers compute where the plugin does;
    - ``options``: the plugin's options.

    Return the names of what was tried. Raises BrokenPromiseError (an AssertionError) for the first
    kernel that fails, and if the plugin computes nothing of the net."""
    tried = []
    given = {name: options}
    with (
        compose(PLAINEST, plugins, given) as host,
        compose(hw or machine_of(plugins, name), plugins, given) as runtime,
    ):
        for trial in tries(host, runtime, name, net, shape, precision, values or {}):
            what = f"plugin {name!r}, kernel {trial.kernel!r} of {trial.operation} in {precision}"
            hold(not trial.wrong, f"{what}: {trial.wrong}")
            if trial.untried:
                continue
            tried.append(f"{trial.kernel} of {trial.operation}")
    hold(tried, f"plugin {name!r} computes nothing of this net in {precision}: {net}")
    return sorted(set(tried))


def tries(
    host: Runtime,
    runtime: Runtime,
    name: str,
    net: str | Path,
    shape: Sequence[int] | None,
    precision: str,
    values: Mapping[str, Any],
    phase: str = "train",
    asked: set[Any] | None = None,
) -> Iterator[Trial]:
    """Try what plugin ``name`` offers in ``runtime`` for each operation of a net. ``host`` has the same
    plugins on a machine where the host computes. Requests that were ``asked`` already, in this net or
    before, are not tried again."""
    judge = Judge(runtime, name, precision)
    with around(net, shape) as path, opened((host, runtime), path, phase, precision) as graph:
        known = starting_values(graph, values, precision)
        yield from _along(judge, graph, known, set() if asked is None else asked)


def _along(judge: Judge, graph: Graph, known: Values, asked: set[Any]) -> Iterator[Trial]:
    """Try the operations of a graph in order, each with the results of earlier ones; try none of them if
    nothing new is offered."""
    requests = {
        node: _request(node, judge.place, judge.precision)
        for node in graph.nodes
        if not node.operation.view
    }
    new = {node: key for node, request in requests.items() if (key := _key(request)) not in asked}
    asked |= set(new.values())
    offered = {node for node in new if next(judge.offers(requests[node]), None) is not None}
    tried = set[Any]()
    for node in graph.nodes if offered else ():
        if any(tensor is not None and tensor not in known for tensor in node.inputs):
            continue  # no plugin here computes what it reads
        values = [tensor and known[tensor] for tensor in node.inputs]
        if node.operation.view:
            known[node.outputs[0]] = values[0].reshape(node.outputs[0].shape)  # type: ignore[index,union-attr]
            continue
        request = requests[node]
        expected = expected_of(judge.runtime, request, values)
        if node in offered and new[node] not in tried:
            tried.add(new[node])
            yield from judge.trials(request, values, expected)
        made = expected or _anybodys(judge, request, values)
        if made is None:
            continue
        outputs = [tensor for tensor in node.outputs if tensor is not None]
        changed = [t for t, o in zip(node.inputs, node.operation.inputs, strict=False) if o.updated]
        for tensor, value in zip((*outputs, *changed), made, strict=True):
            if tensor is not None:
                known[tensor] = rounded(tensor, value, judge.precision)


def _key(request: Request) -> Any:
    """Return a key that tells requests apart; the operation comes first."""
    about = request.operation.name, request.inputs, request.outputs, request.precision
    return (*about, repr(dict(request.attributes)))


def _request(node: Node, place: Place, precision: str) -> Request:
    """Return the request that a plan makes; in bf16, what passes between layers has half of the bits."""

    def spec(tensor: Tensor | None, halves: bool) -> TensorSpec | None:
        if tensor is None:
            return None
        passing = tensor.kind in ("activation", "gradient") and tensor.dtype == "float32"
        layout = HALVES if halves and passing and precision == "bf16" else demitasse.PLAIN
        return TensorSpec(tensor.shape, tensor.dtype, layout)

    inputs = tuple(spec(tensor, True) for tensor in node.inputs)
    outputs = tuple(spec(tensor, False) for tensor in node.outputs)
    return Request(node.operation, inputs, outputs, node.attributes, place, precision)


def expected_of(runtime: Runtime, request: Request, values: Sequence[Any]) -> list[np.ndarray] | None:
    """Return what the reference plugin computes from ``values`` in double precision; None if it does not
    compute the operation, or rejects the values."""
    serving = dict(runtime.serving("kernels", space="host"))
    exact = _exact(request, Place("host"))
    for candidate in serving[ORACLE](request=exact) if ORACLE in serving else ():
        try:
            return applied(candidate, exact, _wide(exact, values), runtime.allocator("host"))
        except DataError:
            return None
    return None


def _exact(request: Request, place: Place) -> Request:
    """Return the same request in double precision and plain layouts."""
    inputs, outputs = (
        tuple(
            spec and TensorSpec(spec.shape, "float64" if spec.dtype == "float32" else spec.dtype)
            for spec in side
        )
        for side in (request.inputs, request.outputs)
    )
    return Request(request.operation, inputs, outputs, request.attributes, place, "f64")


def _wide(request: Request, values: Sequence[Any]) -> list[Any]:
    """Return the values in the element types of the request."""
    return [s and value.astype(s.dtype) for s, value in zip(request.inputs, values, strict=True)]


def _anybodys(judge: Judge, request: Request, values: Sequence[Any]) -> list[np.ndarray] | None:
    """Return what the first plugin able to do so computes from ``values``, or None."""
    for _, hook in judge.runtime.serving("kernels", space=judge.place.space):
        try:
            for candidate in hook(request=request):
                return applied(candidate, request, values, judge.allocator)
        except Exception:  # noqa: BLE001  what it raised was told of as a trial's
            continue
    return None


def applied(
    candidate: Candidate, request: Request, values: Sequence[Any], allocator: Allocator
) -> list[np.ndarray]:
    """Return the outputs and the updated inputs of a candidate, in logical order. The candidate is bound
    twice, to different arrays, and first called on other values, as in an earlier step. Raises
    BrokenPromiseError if it does something that it must not do."""
    with (
        operands(candidate, request, allocator) as first,
        operands(candidate, request, allocator) as second,
    ):
        earlier = [_other(value) for value in values]
        for arrays in (first, second):
            arrays.renew(earlier)
        works = [candidate.bind(*arrays.arrays) for arrays in (first, second)]
        for work in works:
            hold(callable(work), f"bind returned {work!r:.60}, which is not a function")
        demitasse.prepare(works)
        for work, arrays in zip(works, (first, second), strict=True):
            work()
            arrays.check()
            arrays.renew(values)
            work()
            arrays.check()
        made = first.made()
        if not any(first.updated):
            works[1]()  # with unchanged inputs
            second.check()
        for position, (one, other) in enumerate(zip(made, second.made(), strict=True)):
            far = differing(other, one, 1e-3, "what it made when it was first bound")
            hold(not far, f"bound again, in {_named(request, position)} {far}")
        return made


def _other(value: np.ndarray | None) -> np.ndarray | None:
    """Return other values that are as consistent as these: those of the next sample or channel."""
    if value is None:
        return None
    axis = next((axis for axis, extent in enumerate(value.shape) if extent > 1), None)
    if axis is not None:
        return np.roll(value, 1, axis)
    if value.dtype.kind == "f":
        return np.asarray(value * value.dtype.type(0.5))
    return np.asarray(value + value.dtype.type(1)) if value.dtype == np.uint64 else value


def _updated(request: Request, values: Sequence[Any]) -> list[Any]:
    """Return the values of the updated inputs."""
    return [v for v, o in zip(values, request.operation.inputs, strict=False) if o.updated]


def _compare(
    request: Request,
    made: Sequence[Any],
    expected: Sequence[Any],
    before: Sequence[Any],
    within: float,
    whose: str,
) -> None:
    """Compare what was made with what is expected, both less what was there ``before``."""
    for position, (ours, theirs, was) in enumerate(zip(made, expected, before, strict=True)):
        changed = bool(np.any(was))
        pair = (ours - was, theirs - was) if changed else (ours, theirs)
        far = differing(*pair, within, whose)
        lacking = "; what was not written is NaN here" if "nan" in far else ""
        hold(not far, f"in {'the change of ' * changed}{_named(request, position)} {far}{lacking}")


def _in_place(
    candidate: Candidate,
    request: Request,
    values: Sequence[Any],
    allocator: Allocator,
    made: Sequence[Any],
    within: float,
) -> None:
    """Check ``in_place``: the first output may take over the memory of an input that is its alias, if
    both have the same layout."""
    names = [operand.name for operand in request.operation.inputs]
    for output, given in request.operation.aliases if candidate.in_place else ():
        position = names.index(given)
        if output != request.operation.outputs[0].name or request.outputs[0] is None:
            continue
        sources = laid_out(request.inputs, candidate.input_layouts)
        targets = laid_out(request.outputs, candidate.output_layouts)
        if sources[position] is None or sources[position] != targets[0]:
            continue
        with operands(candidate, request, allocator, sharing=position) as arrays:
            arrays.renew(values)
            work = candidate.bind(*arrays.arrays)
            demitasse.prepare([work])
            work()
            arrays.check()
            far = differing(arrays.made()[0], made[0], within, "what it makes elsewhere")
            hold(not far, f"{output} in the memory of {given} (in_place is true): {far}")


def _in_parts(
    candidate: Candidate, request: Request, values: Sequence[Any], allocator: Allocator
) -> None:
    """Check ``bind_part``: the stretches of the first output, made one after the other in the same
    place, equal those of the whole."""
    parts = candidate.parts
    with operands(candidate, request, allocator) as arrays:
        arrays.renew(values)
        whole = arrays.outputs[0] if arrays.outputs else None
        if parts == 1 or whole is None or whole.array.size % parts or candidate.bind_part is None:
            return
        inputs, outputs, scratch = arrays.arrays
        work = candidate.bind(inputs, outputs, scratch)
        demitasse.prepare([work])
        work()
        expected = np.array(np.asarray(whole.array)).reshape(parts, -1)
        stretch = whole.array.reshape(-1)[: whole.array.size // parts]
        works = [
            candidate.bind_part(number, inputs, [stretch, *outputs[1:]], scratch)
            for number in range(parts)
        ]
        demitasse.prepare(works)
        for number, work in enumerate(works):
            work()
            arrays.check()
            same = np.array(np.asarray(stretch)).tobytes() == expected[number].tobytes()
            hold(same, f"part {number} of {parts} differs from that part of the whole")


def _named(request: Request, position: int) -> str:
    """Return the operand of result number ``position``: outputs come first, then updated inputs."""
    kinds = [*request.operation.outputs]
    kinds += kinds[-1:] * (len(request.outputs) - len(kinds))
    names = [o.name for o, spec in zip(kinds, request.outputs, strict=False) if spec is not None]
    names += [operand.name for operand in request.operation.inputs if operand.updated]
    return names[position] if position < len(names) else "an output"
