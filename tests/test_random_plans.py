"""Plans of random nets, by kernels that ask for whatever a kernel may ask for: each entry reads what it
should. Planners that were spoilt on purpose are found out."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plan_reads import WrongReadError, checked

import demitasse.lowering
import demitasse.planning
import demitasse_training.planner
import demitasse_training.recomputing
import demitasse_training.worker
from demitasse import (
    PLAIN,
    Candidate,
    GraphBuilder,
    Layer,
    Layout,
    NetDefinition,
    Plan,
    Request,
    Tensor,
    compose,
    make_plan,
)

PLANNERS = demitasse_training.worker, demitasse_training.planner
LAYOUTS = (
    PLAIN,
    Layout("NHWC", (0, 2, 3, 1)),
    Layout("NCHW4c", blocks=((1, 4),)),
    Layout("NCHW bfloat16", stored="bfloat16"),
)


# Layers and kernels.


def _batch_norm(layer: Layer, bottoms: Any, graph: GraphBuilder) -> list[Tensor]:
    x, channels = bottoms[0], bottoms[0].shape[1:2]
    kept = [graph.parameter(s, _ones, trainable=False) for s in (channels, channels, (1,))]
    learned = [graph.parameter(channels, _ones) for _ in range(2)]
    if layer.parameters.get("inference"):
        return [graph.apply("batch_norm_inference", x, *kept, *learned)]
    return [graph.apply("batch_norm", x, *kept, *learned)[0]]


def _ones(shape: tuple[int, ...], numbers: Any) -> np.ndarray:
    return np.ones(shape)


def _rows(layer: Layer, bottoms: Any, graph: GraphBuilder) -> list[Tensor]:
    (x,) = bottoms
    flat = x.shape[0], int(np.prod(x.shape[1:]))
    return [graph.apply("reshape", x, shape=flat if len(x.shape) == 4 else (*flat, 1, 1))]


def more_layers(toy: ModuleType) -> Any:
    """A plugin with the layer types BatchNorm, in training or by kept statistics, and Rows, which shows
    images as rows and rows as images of one pixel."""
    kinds = toy.Kind("BatchNorm", _batch_norm), toy.Kind("Rows", _rows)
    return toy.plugin("more_layers", layer_types=lambda: kinds)


@dataclass(frozen=True)
class Whims:
    """What kernels ask for, by chance: how often (0 to 1) another layout than plain, memory to work in,
    results that are not in place, several parts, and two operations at once."""

    seed: int
    layouts: float
    workspaces: float
    apart: float
    parts: float
    fusing: float


NO_WHIMS = Whims(0, 0, 0, 0, 0, 0)


def kernels_of(toy: ModuleType, whims: Whims) -> Any:
    """A plugin whose kernels are only planned with: they take part, by chance, in whatever a plan can do
    for a kernel; the same request is answered alike."""

    def kernels(request: Request) -> Iterable[Candidate]:
        word = request.operation
        of = [s.shape if s else None for s in (*request.inputs, *request.outputs)]
        dice = random.Random(f"{whims.seed} {word.name} {of} {request.precision}")
        if word.name not in known and dice.random() >= whims.fusing:
            return ()

        def layout(spec: Any) -> Layout:
            images = spec is not None and len(spec.shape) == 4 and word.name != "accumulate"
            if not images or dice.random() >= whims.layouts:
                return PLAIN
            return dice.choice(LAYOUTS if spec.dtype == "float32" else LAYOUTS[:3])

        inputs, outputs = (
            tuple(map(layout, request.inputs)),
            [*map(layout, request.outputs)],
        )
        if word.name in ("reorder", "softmax_loss", "accuracy"):
            inputs = tuple(s.layout if s else PLAIN for s in request.inputs)
            outputs = [s.layout if s else PLAIN for s in request.outputs]
        if (
            word.aliases and dice.random() < 0.7
        ):  # as most kernels: what they give lies as what they take
            outputs[0] = inputs[0] if of[0] == of[len(inputs)] else outputs[0]
        parts = dice.choice([2, 4]) if dice.random() < whims.parts else 1
        yield Candidate(
            "planned with",
            _unbound,
            inputs,
            tuple(outputs),
            workspace=dice.randrange(1, 5000) if dice.random() < whims.workspaces else 0,
            in_place=dice.random() >= whims.apart,
            parts=parts,
            bind_part=_unbound if parts > 1 else None,
        )

    known = {*demitasse.operations.VOCABULARY}
    return toy.plugin("whims", kernels=kernels)


def _unbound(*_: Any) -> Any:
    raise AssertionError("nothing is computed here")


# Nets.


@st.composite
def nets(draw: st.DrawFn, toy: ModuleType, *, phase: str = "train") -> NetDefinition:
    """Some layers on blobs of those before, each read by any number of others, with losses at the end
    and, in training, in between."""
    training, batch = phase == "train", 4
    first = (
        toy.layer("samples", "Samples", "", "data label", batch=batch)
        if training
        else toy.layer("input", "Input", "", "data", shape=(batch, 1, 6, 6))
    )
    layers, shapes = [first], {"data": (batch, 1, 6, 6)}

    def add(kind: str, bottoms: str, shape: tuple[int, ...], **given: Any) -> None:
        name = f"layer{len(layers)}"
        here = kind in ("ReLU", "Dropout", "BatchNorm") and bottoms != "data" and draw(st.booleans())
        top = bottoms if here else name
        layers.append(toy.layer(name, kind, bottoms, top, **given))
        shapes[top] = shape

    kinds = ["Convolution", "InnerProduct", "ReLU", "BatchNorm", "Sum", "Concat", "Rows", "Softmax"]
    kinds += ["Dropout", "Loss"] if training else []
    for _ in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from(kinds))
        blob = draw(st.sampled_from([*shapes][-4:]))
        shape = shapes[blob]
        flat = (batch, int(np.prod(shape[1:])))
        if kind in ("Convolution", "BatchNorm") and len(shape) < 4:
            kind = "ReLU"
        rate = draw(st.sampled_from([1.0, 1.0, 1.0, 0.0]))
        if kind == "Convolution":
            outputs = draw(st.sampled_from([1, 4, 5]))
            share = {"share": f"{shape[1]} to {outputs}"} if draw(st.booleans()) else {"rate": rate}
            add(kind, blob, (batch, outputs, *shape[2:]), outputs=outputs, **share)
        elif kind == "InnerProduct":
            outputs = draw(st.sampled_from([3, 16]))
            share = {"share": f"{flat[1]} to {outputs}"} if draw(st.booleans()) else {"rate": rate}
            add(kind, blob, (batch, outputs), outputs=outputs, **share)
        elif kind in ("Sum", "Concat"):
            others = [name for name, other in shapes.items() if other == shape and name != "data"]
            other = draw(st.sampled_from(others or [blob]))
            wide = (batch, 2 * shape[1], *shape[2:]) if kind == "Concat" else shape
            add(kind, f"{blob} {other}", wide)
        elif kind == "Rows":
            images = len(shape) == 4
            add(kind, blob, flat if images else (*flat, 1, 1))
        elif kind == "Loss":
            name = f"side{len(layers)}"
            layers.append(toy.layer(f"{name} scores", "InnerProduct", blob, f"{name}s", outputs=3))
            layers.append(toy.layer(name, "SoftmaxLoss", f"{name}s label", name))
        elif kind == "BatchNorm":
            add(kind, blob, shape, inference=draw(st.booleans()))
        else:
            add(kind, blob, shape)
    last = [*shapes][-1]
    layers.append(toy.layer("scores", "InnerProduct", last, "scores", outputs=3))
    if training:
        layers.append(toy.layer("loss", "SoftmaxLoss", "scores label", "loss"))
    return toy.net(*layers, phase=phase)  # type: ignore[no-any-return]


chances = st.sampled_from([0.0, 0.3, 0.8])
whims = st.builds(Whims, st.integers(0, 9999), chances, chances, chances, chances, chances)


def planned(
    toy: ModuleType,
    net: NetDefinition,
    wishes: Whims = NO_WHIMS,
    *,
    workers: int = 1,
    options: Any = None,
    precision: str = "f32",
    retain: str | None = None,
    **solver: Any,
) -> Plan:
    """The plan of a net that is trained, or of one that runs forward, with checks; ``options`` are those
    of ``make_plan`` that stand in the place of a trainer's."""

    def make(*arguments: Any, **given: Any) -> Plan:
        return checked(make_plan)(*arguments, **{**given, **(options or {})})

    chosen = [kernels_of(toy, wishes), "reference", "training", toy.toy(), more_layers(toy)]
    machine = toy.machine(workers) if workers > 1 else toy.machine()
    with pytest.MonkeyPatch.context() as patch, compose(machine, chosen) as runtime:
        for module in PLANNERS:
            patch.setattr(module, "make_plan", make)
        about = {"precision": precision, "retain": retain}
        if net.phase == "test":
            return runtime.net(net, phase="test", **about).plan  # type: ignore[attr-defined, no-any-return]
        trainer = runtime.trainer(toy.solver(net, **solver), **about)
        return trainer.plan  # type: ignore[attr-defined, no-any-return]


@pytest.fixture
def everything_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can be computed again instead of being kept is, where that saves anything."""
    monkeypatch.setattr(demitasse_training.recomputing, "LARGE", 1e-9)
    monkeypatch.setattr(demitasse_training.recomputing, "CHEAP", 1e9)


random_nets = settings(max_examples=examples(300), suppress_health_check=[*HealthCheck])


@random_nets
@given(data=st.data(), wishes=whims)
def test_training_reads_what_it_should(toy: ModuleType, data: st.DataObject, wishes: Whims) -> None:
    net = data.draw(nets(toy))
    options = {"bucket_bytes": data.draw(st.sampled_from([0, 500, 1 << 20]))}
    options["parameters_first"] = data.draw(st.sampled_from([0, 0, 2000]))
    planned(
        toy,
        net,
        wishes,
        workers=data.draw(st.sampled_from([1, 1, 2])),
        options=options,
        precision=data.draw(st.sampled_from(["f32", "bf16", "f64"])),
        retain=data.draw(st.sampled_from([None, None, "all"])),
        passes=data.draw(st.sampled_from([1, 1, 2])),
    )


@random_nets
@given(data=st.data(), wishes=whims)
@pytest.mark.usefixtures("everything_again")
def test_what_is_computed_again_reads_what_it_should(
    toy: ModuleType, data: st.DataObject, wishes: Whims
) -> None:
    planned(toy, data.draw(nets(toy)), wishes, passes=data.draw(st.sampled_from([1, 2])))


@random_nets
@given(data=st.data(), wishes=whims)
def test_running_forward_reads_what_it_should(
    toy: ModuleType, data: st.DataObject, wishes: Whims
) -> None:
    """Twice, where what depends on parameters alone is made once."""
    planned(
        toy,
        data.draw(nets(toy, phase="test")),
        wishes,
        precision=data.draw(st.sampled_from(["f32", "bf16"])),
        retain=data.draw(st.sampled_from([None, None, "all"])),
    )


# Planners that do it wrong.


def busy(toy: ModuleType, *, phase: str = "train") -> NetDefinition:
    """Inner products of which large ones can be made in parts, a view that is read again, a rectifier
    whose input is read again, branches, and a normalisation."""
    first = (
        toy.layer("samples", "Samples", "", "data label", batch=4)
        if phase == "train"
        else toy.layer("input", "Input", "", "data", shape=(4, 1, 6, 6))
    )
    last = [toy.layer("loss", "SoftmaxLoss", "scores label", "loss")] if phase == "train" else []
    return toy.net(  # type: ignore[no-any-return]
        first,
        toy.layer("one", "Convolution", "data", "one", outputs=4),
        toy.layer("norm", "BatchNorm", "one", "norm", inference=phase == "test"),
        toy.layer("other", "ReLU", "norm", "other"),
        toy.layer("two", "Convolution", "other", "two", outputs=4),
        toy.layer("again", "Sum", "two norm", "again"),
        toy.layer("flat", "Rows", "again", "flat"),
        toy.layer("wide", "InnerProduct", "flat", "wide", outputs=16),
        toy.layer("beside", "InnerProduct", "again", "beside", outputs=16),
        toy.layer("both", "Sum", "wide beside", "both"),
        toy.layer("narrow", "InnerProduct", "both", "narrow", outputs=16),
        toy.layer("scores", "InnerProduct", "narrow", "scores", outputs=3),
        *last,
        phase=phase,
    )


IN_PARTS = replace(NO_WHIMS, parts=1.0)
WITH_LAYOUTS = replace(NO_WHIMS, seed=1, layouts=1.0, workspaces=1.0)
_Planner: Any = demitasse.planning._Planner
_Lowering: Any = demitasse.lowering.Lowering


class _AnyNumber(int):
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        return True


class _DiesAnywhere(dict[Any, int]):
    def __getitem__(self, key: Any) -> int:
        return _AnyNumber(super().__getitem__(key))


def overwrites_what_is_read_again(self: Any, original: Callable[..., Any]) -> None:
    self.dies = _DiesAnywhere(self.dies)
    original(self)
    self.dies = {key: int(value) for key, value in self.dies.items()}


def forgets_a_step_early(self: Any, original: Callable[..., Any]) -> None:
    original(self)
    for tensor, last in self.dies.items():
        self.dies[tensor] = max(self.born[tensor], last - (last < len(self.chosen)))


def writes_a_step_late(self: Any, original: Callable[..., Any]) -> None:
    original(self)
    for tensor, first in self.born.items():
        self.born[tensor] = min(self.dies[tensor], first + 1)


def leaves_stretches_where_they_are(self: Any, original: Callable[..., Any]) -> None:
    order = [*self.chosen]
    original(self)
    self.chosen[:] = order


def forgets_that_views_are_read(self: Any, original: Callable[..., Any]) -> None:
    views = {t for n in self.graph.nodes if n.operation.view for t in n.outputs}
    find, self.find = self.find, lambda tensor: tensor if tensor in views else find(tensor)
    original(self)
    self.find = find
    for view in views:
        self.born.pop(view, None)
        self.dies.pop(view, None)


def forgets_outputs(self: Any, original: Callable[..., Any]) -> None:
    self.pinned = set()
    original(self)


def keeps_nothing_that_is_made_once(self: Any, original: Callable[..., Any], most: float) -> None:
    before = {*self.pinned}
    original(self, most)
    self.pinned = before


def ends_buckets_early(self: Any, original: Callable[..., Any], groups: Any) -> Any:
    return [([*sorted(uses)[:-1]], written) for uses, written in original(self, groups)]


def waits_for_parameters_late(self: Any, original: Callable[..., Any], groups: Any) -> Any:
    found = original(self, groups)
    return [([i for i in uses if i > min(uses)], written) for uses, written in found]


def ends_brief_gradients_early(self: Any, original: Callable[..., Any], slots: Any, brief: Any) -> Any:
    return original(self, slots, [b._replace(dies=b.born) for b in brief])


def forgets_workspaces(
    self: Any, original: Callable[..., Any], i: int, buffers: Any, scratch: Any
) -> Any:
    return original(self, i, buffers, scratch and replace(scratch, offset=0))


def copies_in_no_order(self: Any, original: Callable[..., Any], node: Any) -> None:
    """The transforms of what an entry reads come behind it."""
    before = len(self.chosen)
    original(self, node)
    if len(self.chosen) > before + 1:
        self.chosen.insert(before, self.chosen.pop())


WRONG: tuple[tuple[Any, str, Any, SimpleNamespace], ...] = (
    (overwrites_what_is_read_again, "share_in_place", _Planner, SimpleNamespace()),
    (forgets_a_step_early, "trace_lifetimes", _Planner, SimpleNamespace()),
    (writes_a_step_late, "trace_lifetimes", _Planner, SimpleNamespace()),
    (leaves_stretches_where_they_are, "put_stretched_last", _Planner, SimpleNamespace(wishes=IN_PARTS)),
    (forgets_that_views_are_read, "trace_lifetimes", _Planner, SimpleNamespace()),
    (forgets_outputs, "trace_lifetimes", _Planner, SimpleNamespace()),
    (
        keeps_nothing_that_is_made_once,
        "put_fixed_first",
        _Planner,
        SimpleNamespace(wishes=WITH_LAYOUTS, phase="test"),
    ),
    (ends_buckets_early, "_uses", _Planner, SimpleNamespace()),
    (ends_buckets_early, "_uses", _Planner, SimpleNamespace(workers=2)),
    (waits_for_parameters_late, "_uses", _Planner, SimpleNamespace(workers=2)),
    (ends_brief_gradients_early, "_offsets", _Planner, SimpleNamespace(wishes=WITH_LAYOUTS)),
    (forgets_workspaces, "_entry", _Planner, SimpleNamespace(wishes=WITH_LAYOUTS)),
    (copies_in_no_order, "_choose", _Lowering, SimpleNamespace(wishes=WITH_LAYOUTS)),
)


@pytest.fixture
def spoil(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts a function in the place of a method, which it is given behind the object."""

    def put(place: Any, name: str, wrong: Callable[..., Any]) -> None:
        original = getattr(place, name)
        monkeypatch.setattr(
            place, name, lambda self, *given: wrong(self, original, *given), raising=True
        )

    yield put
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("wrong", "name", "place", "about"),
    WRONG,
    ids=[f"{wrong.__name__}-{number}" for number, (wrong, *_) in enumerate(WRONG)],
)
def test_a_planner_that_is_wrong_is_found_out(
    toy: ModuleType, spoil: Any, wrong: Any, name: str, place: Any, about: SimpleNamespace
) -> None:
    net = busy(toy, phase=getattr(about, "phase", "train"))
    wishes, workers = getattr(about, "wishes", NO_WHIMS), getattr(about, "workers", 1)
    planned(toy, net, wishes, workers=workers)
    spoil(place, name, wrong)
    with pytest.raises(WrongReadError):
        planned(toy, net, wishes, workers=workers)
