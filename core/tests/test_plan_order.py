"""Plans: what is done before everything else, and what is done once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from demitasse import Candidate, Graph, Kernels, Node, Parameter, Place, Plan, Request, Tensor, Work
from demitasse import make_plan as planned
from demitasse.operations import VOCABULARY

SMALL, LARGE = (4, 4), (64, 64)
NBYTES = 4 * 4 * 4


def nothing(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
    raise AssertionError("these plans are never bound")


def everything(request: Request) -> Iterable[Candidate]:
    return [Candidate(request.operation.name, nothing)]


def make_plan(**options: Any) -> Plan:
    """Plan a net that reads its parameters; a normalisation changes one of them, ``mean``."""
    graph = Graph(VOCABULARY, "train", "float32")

    def parameter(name: str, *shape: int) -> Tensor:
        tensor = Tensor(name, shape, "float32", "parameter")
        graph.parameters.append(Parameter(tensor, [(name, 0)], lambda *about: None, 1, 1, False))
        return tensor

    def add(name: str, word: str, *inputs: Tensor, phase: str = "forward") -> Tensor:
        operation, made = VOCABULARY[word], Tensor(name, inputs[0].shape, "float32", "activation")
        given = [*inputs, *[None] * (len(operation.inputs) - len(inputs))]
        outputs = [made, *[None] * (len(operation.outputs) - 1)]
        graph.nodes.append(Node(operation, given, outputs, dict(operation.attributes), name, phase))
        graph.outputs[name] = made
        return made

    x = graph.inputs["x"] = Tensor("x", SMALL, "float32", "input")
    mean, *kept = (parameter(name, 4) for name in ("mean", "variance", "factor"))
    small, large = parameter("small", *SMALL), parameter("large", *LARGE)
    norm = add("norm", "batch_norm", x, mean, *kept)
    add("after norm", "relu", norm)
    add("of mean", "relu", mean)
    add("of large", "relu", large)
    of_small = add("of small", "relu", small)
    add("with x", "sum", of_small, x)
    add("twice", "sum", of_small, small)
    add("backward", "relu", small, phase="backward")
    return planned(graph, Kernels([("all", everything)]), Place("test"), **options)


def order(plan: Plan) -> list[str]:
    return [entry.layer for entry in plan.entries]


AS_GIVEN = [
    *("norm", "after norm", "of mean", "of large", "of small", "with x", "twice", "backward"),
]


def test_operations_are_in_the_order_in_which_they_are_given() -> None:
    assert order(make_plan()) == AS_GIVEN
    assert order(make_plan(parameters_first=NBYTES - 1)) == AS_GIVEN


def test_what_is_made_of_parameters_alone_is_first_if_it_is_small() -> None:
    """What a normalisation changes is read after it, and backward operations stay in their place."""
    ahead = ["of small", "twice"]
    plan = make_plan(parameters_first=NBYTES)
    assert order(plan) == [*ahead, *(name for name in AS_GIVEN if name not in ahead)]
    assert not any(entry.once for entry in plan.entries)


def test_what_is_made_of_fixed_parameters_alone_is_made_once_unless_somebody_changes_them() -> None:
    plan = make_plan(fixed_parameters=True)
    once = ["of large", "of small", "twice"]
    assert order(plan) == [*once, *(name for name in AS_GIVEN if name not in once)]
    assert [entry.layer for entry in plan.entries if entry.once] == once
