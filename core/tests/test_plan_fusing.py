"""Plans: an operation and the only reader of its result are joined if one kernel does both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest
from drawn_examples import examples
from fused_words import FUSED, word
from hypothesis import given, settings
from hypothesis import strategies as st

from demitasse import (
    Candidate,
    Entry,
    Graph,
    Kernels,
    Node,
    Place,
    Plan,
    Request,
    Tensor,
    Work,
    make_plan,
    shapes_by_operand,
)
from demitasse.operations import VOCABULARY, define_function

FUNCTIONS = (
    *define_function("bounded", "at most most", "dy where x <= most", "x", 1, {"most": 6.0}),
    *define_function("padded", "x + pad", "dy", "x", 1, {"pad": 1.0}),
)
WORDS = {**VOCABULARY, **{word.name: word for word in FUNCTIONS}}
EVERYTHING = {*WORDS, *FUSED, "convolution_bounded", "convolution_padded", "softmax_bounded"}
SHAPE = (2, 4, 3, 3)


def nothing(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    raise AssertionError("these plans are never bound")


class Stub:
    """Kernels of a plugin for some operations, and the requests made; candidates are named by number."""

    def __init__(self, *names: str) -> None:
        self.names = set(names) or EVERYTHING
        self.asked: dict[str, Request] = {}

    def __call__(self, request: Request) -> Iterable[Candidate]:
        if request.operation.name not in self.names:
            return []
        number = str(len(self.asked))
        self.asked[number] = request
        return [Candidate(number, nothing)]


class Sketch:
    """A graph built by hand: operations in the order in which they are added, tensors of one shape."""

    def __init__(self) -> None:
        self.graph = Graph(WORDS, "train", "float32")

    def input(self, name: str, *shape: int) -> Tensor:
        self.graph.inputs[name] = Tensor(name, shape or SHAPE, "float32", "input")
        return self.graph.inputs[name]

    def add(
        self, name: str, word: str, *inputs: Tensor, phase: str = "forward", **attributes: Any
    ) -> Tensor:
        """Add an operation and return its first result, which is named ``name``."""
        operation = WORDS[word]
        absent = [] if operation.inputs[-1].variadic else [None] * len(operation.inputs)
        given = [*inputs, *absent[len(inputs) :]]
        node = Node(operation, given, [], {**operation.attributes, **attributes}, name, phase)
        made = operation.shapes(shapes_by_operand(node), node.attributes)
        for operand, shape in zip(operation.outputs, made, strict=True):
            own = name if not node.outputs else f"{name}.{operand.name}"
            node.outputs.append(Tensor(own, tuple(shape), "float32", "activation"))
        self.graph.nodes.append(node)
        first = node.outputs[0]
        assert first is not None
        return first

    def convolution(self, name: str, x: Tensor) -> Tensor:
        """Add a convolution with one tap, without biases."""
        return self.add(name, "convolution", x, self.input(f"{name}.w", 4, 4, 1, 1))

    def norm(self, name: str, x: Tensor, kind: str = "batch_norm", **attributes: Any) -> Tensor:
        """Add a normalisation with statistics of its own, without w and b."""
        kept = [self.input(f"{name}.{each}", 4) for each in ("mean", "variance")]
        return self.add(name, kind, x, *kept, self.input(f"{name}.factor", 1), **attributes)

    def plan(self, *needed: Tensor, kernels: Kernels | None = None, **options: Any) -> Plan:
        """Return a plan for the ``needed`` tensors; one plugin computes every operation that exists."""
        self.graph.outputs = {tensor.name: tensor for tensor in needed}
        return make_plan(self.graph, kernels or Kernels([("all", Stub())]), Place("test"), **options)


@pytest.fixture
def sketch() -> Sketch:
    return Sketch()


def done(plan: Plan) -> list[str]:
    return [entry.operation for entry in plan.entries]


def names(buffers: Sequence[Any]) -> list[str | None]:
    return [None if buffer is None else buffer.name for buffer in buffers]


def last(plan: Plan) -> Entry:
    return plan.entries[-1]


@pytest.mark.parametrize("turned", [False, True])
def test_a_sum_waits_for_an_operand_that_is_made_later(sketch: Sketch, turned: bool) -> None:
    x = sketch.input("x")
    y = sketch.convolution("y", x)
    other = sketch.add("other", "softmax", x)
    operands = (other, y) if turned else (y, other)
    total = sketch.add("total", "sum", *operands)
    plan = sketch.plan(total)
    assert done(plan) == ["convolution", "softmax", "sum"]
    # Of two summands, the later one is joined with the sum, because the other exists by then.
    later = sketch.convolution("later", x)
    plan = sketch.plan(sketch.add("all", "sum", *((later, other) if turned else (other, later))))
    assert done(plan) == ["softmax", "convolution_sum"]
    assert names(last(plan).inputs) == ["x", "later.w", None, "other"]
    assert names(last(plan).outputs) == ["all"]
    assert last(plan).layer == "later"


def test_what_nobody_else_reads_between_is_in_no_memory(sketch: Sketch) -> None:
    x = sketch.input("x")
    total = sketch.add("total", "sum", sketch.convolution("y", x), x)
    alone = Kernels([("few", Stub(*VOCABULARY))])
    for plan, blobs in ((sketch.plan(total), 1), (sketch.plan(total, kernels=alone), 2)):
        assert len({name for entry in plan.entries for name in names(entry.outputs)}) == blobs


def test_a_plugin_asked_in_two_memories_is_named_once_in_the_reason(sketch: Sketch) -> None:
    """As where operations without a kernel in a device's memory are computed in the host's."""
    few = "few", Stub("relu")
    kernels = Kernels([few, few, ("all", Stub()), few])
    plan = sketch.plan(sketch.convolution("y", sketch.input("x")), kernels=kernels)
    assert [entry.reason for entry in plan.entries] == ["not computed by few"]


def test_a_result_added_to_itself_is_not_fused(sketch: Sketch) -> None:
    y = sketch.convolution("y", sketch.input("x"))
    assert done(sketch.plan(sketch.add("twice", "sum", y, y))) == ["convolution", "sum"]


def test_a_result_that_others_read_is_not_fused(sketch: Sketch) -> None:
    x = sketch.input("x")
    y = sketch.convolution("y", x)
    total = sketch.add("total", "sum", y, x)
    beside = sketch.add("beside", "softmax", y)
    assert done(sketch.plan(total, beside)) == ["convolution", "sum", "softmax"]
    # Nothing needs the second reader, so it is dropped, and only one is left.
    assert done(sketch.plan(total)) == ["convolution_sum"]


@pytest.mark.parametrize("reader", ["relu", "sum"])
@pytest.mark.parametrize("why", ["an output", "an objective"])
def test_a_result_that_the_user_needs_is_not_fused(sketch: Sketch, why: str, reader: str) -> None:
    x = sketch.input("x")
    y = sketch.convolution("y", x)
    after = sketch.add("after", reader, y, *[x] * (reader == "sum"))
    if why == "an objective":
        sketch.graph.objective.append((y, 1.0))
    needed = [y, after] if why == "an output" else [after]
    assert done(sketch.plan(*needed)) == ["convolution", reader]


@pytest.mark.parametrize("kind", ["convolution", "batch_norm", "batch_norm_inference"])
def test_a_chain_becomes_one(sketch: Sketch, kind: str) -> None:
    x, other = sketch.input("x"), sketch.input("other")
    y = sketch.convolution("y", x) if kind == "convolution" else sketch.norm("y", x, kind)
    plan = sketch.plan(sketch.add("z", "relu", sketch.add("total", "sum", y, other)))
    assert done(plan) == [f"{kind}_sum_relu"]
    assert names(last(plan).inputs)[-1] == "other"
    assert names(last(plan).outputs)[0] == "z"


def test_what_a_node_makes_beside_its_result_stays_where_somebody_reads_it(sketch: Sketch) -> None:
    x = sketch.input("x")
    sketch.norm("y", x)
    y, average, inverse = sketch.graph.nodes[0].outputs
    assert y is not None and average is not None and inverse is not None
    total = sketch.add("total", "sum", y, x)
    for needed, made in (
        ([total], ["total", None, None]),
        ([total, average, inverse], ["total", "y.average", "y.inverse"]),
    ):
        plan = sketch.plan(*needed)
        assert done(plan) == ["batch_norm_sum"]
        assert names(last(plan).outputs) == made
        sketch.graph.nodes[0].outputs[:] = [y, average, inverse]


def test_a_request_for_both_names_the_operands_of_both(sketch: Sketch) -> None:
    x, r = sketch.input("x"), sketch.input("r")
    stub = Stub()
    total = sketch.add("total", "sum", x, r, coefficients=(2.0, -1.0), phase="backward")
    dx = sketch.add("dx", "relu_backward", total, r, phase="backward")
    z = sketch.add("z", "sum", sketch.norm("y", x, relu=True), r)
    plan = sketch.plan(dx, z, kernels=Kernels([("all", stub)]))
    assert done(plan) == ["sum_relu_backward", "batch_norm_sum"]
    for entry in plan.entries:
        asked = stub.asked[entry.kernel]
        assert asked.operation == word(entry.operation)
        assert [s.shape for s in asked.inputs if s] == [b.spec.shape for b in entry.inputs if b]
    of_sum, of_norm = (stub.asked[entry.kernel].attributes for entry in plan.entries)
    assert of_sum == {"coefficients": (2.0, -1.0)}
    assert of_norm == {**VOCABULARY["batch_norm"].attributes, "relu": True}
    assert names(plan.entries[0].inputs) == ["x", "r", "r"]


@pytest.mark.parametrize(
    ("reader", "attributes"), [("relu", {"negative_slope": 0.1}), ("sum", {"coefficients": (1.0, -1.0)})]
)
def test_a_reader_with_attributes_of_its_own_is_not_fused(
    sketch: Sketch, reader: str, attributes: dict[str, Any]
) -> None:
    x = sketch.input("x")
    y = sketch.convolution("y", x)
    after = sketch.add("after", reader, y, *[x] * (reader == "sum"), **attributes)
    assert done(sketch.plan(after)) == ["convolution", reader]


def test_a_function_of_each_element_brings_its_attributes(sketch: Sketch) -> None:
    stub = Stub()
    y = sketch.convolution("y", sketch.input("x"))
    plan = sketch.plan(sketch.add("z", "bounded", y, most=4.0), kernels=Kernels([("all", stub)]))
    assert done(plan) == ["convolution_bounded"]
    asked = stub.asked[last(plan).kernel]
    assert asked.attributes == {**VOCABULARY["convolution"].attributes, "most": 4.0}
    assert asked.operation.inputs == VOCABULARY["convolution"].inputs
    assert names(last(plan).inputs) == ["x", "y.w", None]
    assert names(last(plan).outputs) == ["z"]


def test_a_function_is_apart_where_one_attribute_would_stand_for_two(sketch: Sketch) -> None:
    y = sketch.convolution("y", sketch.input("x"))
    assert done(sketch.plan(sketch.add("z", "padded", y))) == ["convolution", "padded"]


def test_a_function_whose_gradient_reads_the_result_is_apart(sketch: Sketch) -> None:
    x = sketch.input("x")
    y = sketch.convolution("y", x)
    z, dy = (
        sketch.add("z", "bounded", y),
        sketch.add("dy", "bounded_backward", x, y, phase="backward"),
    )
    assert done(sketch.plan(z, dy)) == ["convolution", "bounded", "bounded_backward"]


def test_a_function_behind_what_fuses_nothing_is_apart(sketch: Sketch) -> None:
    y = sketch.add("y", "softmax", sketch.input("x"))
    assert done(sketch.plan(sketch.add("z", "bounded", y))) == ["softmax", "bounded"]


def test_in_a_chain_only_the_first_has_attributes_of_its_own(sketch: Sketch) -> None:
    x = sketch.input("x")
    weighted = sketch.add("w", "sum", sketch.convolution("y", x), x, coefficients=(1.0, -1.0))
    assert done(sketch.plan(sketch.add("z", "relu", weighted))) == ["convolution", "sum_relu"]


def test_an_operation_that_names_no_such_reader_is_not_fused(sketch: Sketch) -> None:
    x = sketch.input("x")
    total = sketch.add("total", "sum", sketch.add("y", "softmax", x), x)
    assert done(sketch.plan(sketch.add("z", "softmax", total))) == ["softmax", "sum", "softmax"]


def test_of_two_results_that_are_added_the_later_one_is_fused(sketch: Sketch) -> None:
    x = sketch.input("x")
    first, second = sketch.convolution("first", x), sketch.convolution("second", x)
    plan = sketch.plan(sketch.add("total", "sum", first, second))
    assert done(plan) == ["convolution", "convolution_sum"]
    assert names(last(plan).inputs) == ["x", "second.w", None, "first"]


def test_all_other_operands_of_the_reader_follow_in_order(sketch: Sketch) -> None:
    x, a, b = (sketch.input(name) for name in ("x", "a", "b"))
    plan = sketch.plan(sketch.add("total", "sum", a, sketch.convolution("y", x), b))
    assert done(plan) == ["convolution_sum"]
    assert names(last(plan).inputs) == ["x", "y.w", None, "a", "b"]


OFFERS: dict[str, tuple[dict[str, Stub], bool]] = {
    "one plugin does both, another the reader": (
        {"quick": Stub("convolution", "convolution_sum"), "slow": Stub(*VOCABULARY)},
        True,
    ),
    "another does both, and the operation too, but is asked later": (
        {"quick": Stub("convolution"), "slow": Stub()},
        False,
    ),
    "another, which is asked first, does both alone": (
        {"odd": Stub("convolution_sum"), "quick": Stub(*VOCABULARY)},
        False,
    ),
    "nobody does both": ({"quick": Stub(*VOCABULARY)}, False),
}


@pytest.mark.parametrize("case", OFFERS)
def test_both_are_left_to_the_plugin_that_would_serve_the_operation(sketch: Sketch, case: str) -> None:
    offers, together = OFFERS[case]
    x = sketch.input("x")
    total = sketch.add("total", "sum", sketch.convolution("y", x), x)
    plan = sketch.plan(total, kernels=Kernels([*offers.items()]))
    assert done(plan) == (["convolution_sum"] if together else ["convolution", "sum"])
    assert plan.entries[0].plugin == "quick"


def test_a_chain_goes_as_far_as_the_plugin_does(sketch: Sketch) -> None:
    x = sketch.input("x")
    z = sketch.add("z", "relu", sketch.add("total", "sum", sketch.convolution("y", x), x))
    for served, expected in (
        ({"sum_relu", "convolution_sum"}, ["convolution", "sum_relu"]),
        ({"sum_relu", "convolution_sum_relu"}, ["convolution_sum_relu"]),
        ({"convolution_sum"}, ["convolution_sum", "relu"]),
    ):
        kernels = Kernels([("some", Stub(*VOCABULARY, *served))])
        assert done(sketch.plan(z, kernels=kernels)) == expected


def test_nothing_is_fused_where_every_blob_is_kept(sketch: Sketch) -> None:
    x = sketch.input("x")
    total = sketch.add("total", "sum", sketch.convolution("y", x), x)
    plan = sketch.plan(sketch.add("z", "relu", total), retain="all")
    assert done(plan) == ["convolution", "sum", "relu"]


def test_a_reader_of_the_other_phase_is_not_fused(sketch: Sketch) -> None:
    x, r = sketch.input("x"), sketch.input("r")
    total = sketch.add("total", "sum", x, r)
    dx = sketch.add("dx", "relu_backward", total, r, phase="backward")
    assert done(sketch.plan(dx)) == ["sum", "relu_backward"]
    sketch.graph.nodes[0].phase = "backward"
    plan = sketch.plan(dx)
    assert done(plan) == ["sum_relu_backward"]
    assert last(plan).phase == "backward"


@pytest.mark.parametrize("same", [False, True])
def test_a_result_takes_the_memory_of_what_is_normalised_unless_that_is_added(
    sketch: Sketch, same: bool
) -> None:
    x, other = (sketch.add(name, "softmax", sketch.input(f"{name} given")) for name in ("x", "other"))
    plan = sketch.plan(sketch.add("total", "sum", sketch.norm("y", x), x if same else other))
    assert done(plan)[-1] == "batch_norm_sum"
    assert last(plan).in_place == (not same)


@pytest.mark.parametrize("other", ["batch_norm", "batch_norm_inference"])
def test_what_a_node_updates_is_read_afterwards(sketch: Sketch, other: str) -> None:
    """There are two normalisations by the same statistics, and the first one changes them."""
    x = sketch.input("x")
    kept = [sketch.input(name, *shape) for name, shape in (("m", (4,)), ("v", (4,)), ("f", (1,)))]
    first = sketch.add("first", "batch_norm", x, *kept)
    second = sketch.add("second", other, x, *kept)
    plan = sketch.plan(sketch.add("total", "sum", first, sketch.add("s", "softmax", second)))
    readers = [entry.layer for entry in plan.entries if "m" in names(entry.inputs)]
    assert readers == ["first", "second"]


def test_a_sum_that_decides_what_passes_is_no_sum_that_arrives(sketch: Sketch) -> None:
    """The sum takes the place of a ReLU's result in relu_backward, and is made in the same phase."""
    dy, a, b = (sketch.input(name) for name in ("dy", "a", "b"))
    dx = sketch.add("dx", "relu_backward", dy, sketch.add("y", "sum", a, b))
    assert done(sketch.plan(dx)) == ["sum", "relu_backward"]


# Whatever is fused, what is computed is the same.


@st.composite
def graphs(draw: Callable[[Any], Any]) -> tuple[Sketch, list[Tensor]]:
    """Draw up to twelve operations, each on any earlier results, and some results that are needed."""
    sketch = Sketch()
    tensors = [sketch.input("x")]

    def some(count: int) -> list[Tensor]:
        return [draw(st.sampled_from(tensors[-3:])) for _ in range(count)]

    for number in range(draw(st.integers(2, 12))):
        kind, name = draw(st.sampled_from(("convolution", "norm", "sum", "sum", "relu"))), f"t{number}"
        if kind == "convolution":
            made = sketch.convolution(name, *some(1))
        elif kind == "norm":
            word = draw(st.sampled_from(("batch_norm", "batch_norm_inference")))
            made = sketch.norm(name, *some(1), word, relu=draw(st.booleans()))
        elif kind == "sum":
            terms = some(draw(st.integers(1, 3)))
            weighted = draw(st.sampled_from((False, False, True)))
            factors = tuple(float(i + 2) for i in range(len(terms))) if weighted else ()
            made = sketch.add(name, "sum", *terms, coefficients=factors)
        else:
            slope = draw(st.sampled_from((0.0, 0.0, 0.5)))
            made = sketch.add(name, "relu", *some(1), negative_slope=slope)
        tensors.append(made)
    needed = draw(st.lists(st.sampled_from(tensors[1:]), max_size=2, unique=True))
    return sketch, list(dict.fromkeys([*needed, tensors[-1]]))


def expression(
    word: str, inputs: Sequence[Any], attributes: Mapping[str, Any], others: Sequence[Any] = ()
) -> Any:
    """Return what an operation computes, as nested words; the terms of a sum may be in any order."""
    if word == "sum":
        factors = attributes["coefficients"] or [1.0] * (len(inputs) + len(others))
        terms = Counter(zip(factors, (*inputs, *others), strict=True))
        return "sum", frozenset(terms.items())
    return word, tuple(inputs), tuple(attributes.items())


@settings(max_examples=examples(300))
@given(drawn=graphs())
def test_fused_or_not_the_same_is_computed(drawn: tuple[Sketch, list[Tensor]]) -> None:
    sketch, needed = drawn
    given = {name: name for name in sketch.graph.inputs}
    expected: dict[str | None, Any] = {None: None, **given}
    for node in sketch.graph.nodes:
        read = [expected[t and t.name] for t in node.inputs]
        expected[node.outputs[0] and node.outputs[0].name] = expression(
            node.operation.name, read, node.attributes
        )
    stub = Stub()
    plan = sketch.plan(*needed, kernels=Kernels([("all", stub)]))
    found: dict[str | None, Any] = {None: None, **given}
    for entry in plan.entries:
        attributes = stub.asked[entry.kernel].attributes
        first, *readers = FUSED.get(entry.operation, (entry.operation,))
        read = [found[name] for name in names(entry.inputs)]  # made before, by an entry that stays
        own = len(read) if VOCABULARY[first].inputs[-1].variadic else len(VOCABULARY[first].inputs)
        value = expression(first, read[:own], attributes)
        for reader in readers:
            others = read[own:] if reader == "sum" else ()
            value = expression(reader, [value], VOCABULARY[reader].attributes, others)
        found[names(entry.outputs)[0]] = value
    for tensor in needed:
        assert found[tensor.name] == expected[tensor.name]
