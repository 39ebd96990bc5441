"""Kernels of a plugin: for the operations of nets, for updates, and in a net as a plan makes it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import CompositionError, ModelError, PlanError, ShapeError, compose
from demitasse.operations import Shape
from demitasse_conformance.inquiry import BROKEN, KEPT, SHAPE, UNTRIED, Inquiry, Outcome, line
from demitasse_conformance.kernels import Judge, Trial, expected_of, tries
from demitasse_conformance.machines import PLAINEST
from demitasse_conformance.nets import NETS
from demitasse_conformance.training import check_training
from demitasse_conformance.updates import update_requests

if TYPE_CHECKING:
    from demitasse import Runtime

LABELS: Mapping[str, Mapping[str, Any]] = {
    "loss": {"label": [0, 1, 2, 3, 4, 1], "kept": np.arange(30).reshape(6, 5) % 2},
    "sequences": {"goes_on": [[0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]]},
}
"""Inputs of the kit's nets that are no random numbers."""

OURS = ("convolution", "pooling", "activation", "combination", "loss", "sequences")


def kernels(asked: Inquiry) -> Iterator[Outcome]:
    """Every candidate for the operations of the kit's nets, of those that were given, and of its own
    layers, there and back, and for each update; then a small net as a plan makes it, trained."""
    nets: list[tuple[str | Path, Shape | None, Mapping[str, Any]]] = [
        (NETS / f"{name}.prototxt", None, LABELS.get(name, {})) for name in OURS
    ]
    nets += [(path, None, {}) for path in asked.nets]
    found = _Found()
    with compose(PLAINEST, asked.plugins) as host, asked.runtime() as runtime:
        known: set[Any] = set()

        def tried(net: str | Path, shape: Shape | None, values: Mapping[str, Any]) -> list[Trial]:
            return [
                trial
                for precision in asked.precisions
                for phase in ("train", "test")
                for trial in tries(
                    host, runtime, asked.name, net, shape, precision, values, phase, known
                )
            ]

        for about in nets:
            yield from found.told(tried(*about))
        for layer in asked.layers(runtime):
            with contextlib.suppress(ModelError, ShapeError, PlanError):  # of more than one blob
                yield from found.told(tried(layer, SHAPE, {}))
        trials = [
            trial for precision in asked.precisions for trial in _updates(runtime, asked, precision)
        ]
        yield from found.told(trials)
        words = {key[0] for key in known}
        words |= {word.name for word in runtime.vocabulary.values() if word.family == "update"}
        for name in _own_words(asked, runtime):
            if name not in words and not runtime.vocabulary[name].view:
                told = "no net here has it; --net FILE names one that does"
                yield Outcome("kernels", name, UNTRIED, told)
    computes = f"computes {len(found.names)} of the {len(words)} operations that were tried"
    yield Outcome("kernels", "in all", KEPT if found.names else UNTRIED, computes)
    if found.names:
        yield from _trained(asked)


def _updates(runtime: Runtime, asked: Inquiry, precision: str) -> Iterator[Trial]:
    judge = Judge(runtime, asked.name, precision)
    for request, values in update_requests(runtime.vocabulary, judge.place, precision):
        if next(judge.offers(request), None) is not None:
            yield from judge.trials(request, values, expected_of(runtime, request, values))


class _Found:
    """Operations that were tried: ``names`` has the kernels of each."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}

    def told(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        """A line for each operation that is new and right, and for each kernel that is not right."""
        for operation in dict.fromkeys(trial.operation for trial in trials):
            those = [trial for trial in trials if trial.operation == operation]
            new = operation not in self.names
            names = self.names.setdefault(operation, set())
            names |= {trial.kernel for trial in those}
            wrong: dict[str, list[Trial]] = {}
            for trial in those:
                if trial.wrong:
                    wrong.setdefault(trial.kernel, []).append(trial)
            for kernel, each in wrong.items():
                first = each[0]
                threads = f"{first.threads} thread{'s' * (first.threads > 1)}"
                told = f"{kernel} ({_precisions(each)}): {threads}: {first.wrong}"
                yield Outcome("kernels", operation, BROKEN, told)
            if not wrong and new:
                alone = "" if those[0].compared else "; nobody to compare it with"
                told = f"{'; '.join(sorted(names))} ({_precisions(those)}){alone}"
                yield Outcome("kernels", operation, KEPT, told)


def _precisions(trials: Sequence[Trial]) -> str:
    return ", ".join(dict.fromkeys(trial.precision for trial in trials))


def _trained(asked: Inquiry) -> Iterator[Outcome]:
    for precision in asked.precisions:
        subject = f"a net trained in {precision}"
        try:
            far = check_training(asked.plugins, asked.name, precision, asked.hw, asked.options)
        except AssertionError as error:
            yield Outcome("kernels", subject, BROKEN, line(error))
        except (CompositionError, PlanError) as error:
            yield Outcome("kernels", subject, UNTRIED, line(error))
        else:
            told = f"losses are {far:.1g} from the reference's"
            yield Outcome("kernels", subject, KEPT, told)


def _own_words(asked: Inquiry, runtime: Runtime) -> list[str]:
    if "operations" not in asked.roles:
        return []
    return [word.name for word in asked.asked_of(runtime, "operations")()]
