"""Checks of a plugin's kernels: for the operations of nets, for updates, and in a planned net."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demitasse import DemitasseError, compose
from demitasse.operations import Shape
from demitasse_conformance.inquiry import (
    BROKEN,
    KEPT,
    SHAPE,
    UNTRIED,
    Inquiry,
    Outcome,
    UntriedError,
    line,
    outcome,
)
from demitasse_conformance.kernels import ITS_OWN, Judge, Trial, expected_of, tries
from demitasse_conformance.machines import PLAINEST
from demitasse_conformance.nets import NETS
from demitasse_conformance.shared_batches import WORDS, shared_batch_requests
from demitasse_conformance.training import beside_the_reference
from demitasse_conformance.updates import update_requests

if TYPE_CHECKING:
    from demitasse import Runtime

LABELS: Mapping[str, Mapping[str, Any]] = {
    "combination": {
        "kept": [1, 0, 1],
        "rows": [2, 0, 0, 1, 2],
        "regions": [[0, 0, 1, 5, 7], [2, 1, 0, 6, 8]],
    },
    "loss": {
        "label": [0, 1, 2, 3, 4, 1],
        "kept": np.arange(30).reshape(6, 5) % 2,
        "pixel_label": np.arange(40).reshape(2, 4, 5) % 3,
        "alike": [1, 0, 0, 1, 1, 0],
    },
    "sequences": {"goes_on": [[0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]]},
}
"""Inputs of the kit's nets that are not random numbers."""

OURS = ("convolution", "pooling", "activation", "combination", "loss", "sequences")


def kernels(asked: Inquiry) -> Iterator[Outcome]:
    """Try every candidate for the operations, forward and backward, of the kit's nets, of given nets and
    of the plugin's own layers, for each update, and for statistics that workers share. Then train a
    small net from its plan."""
    nets: list[tuple[str | Path, Shape | None, Mapping[str, Any]]] = [
        (NETS / f"{name}.prototxt", None, LABELS.get(name, {})) for name in OURS
    ]
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
        for path in asked.nets:
            try:
                yield from found.told(tried(path, None, {}))
            except (DemitasseError, MemoryError) as error:
                yield Outcome("kernels", path.name, UNTRIED, line(error))
        for layer in asked.layers(runtime):
            with contextlib.suppress(DemitasseError):  # the layer needs more than one blob
                yield from found.told(tried(layer, SHAPE, {}))
        for made in (updates, shared_batches):
            yield from found.told([t for each in asked.precisions for t in made(runtime, asked, each)])
        words = {key[0] for key in known} | {word for word in WORDS if word in runtime.vocabulary}
        words |= {word.name for word in runtime.vocabulary.values() if word.family == "update"}
        for name in _own_words(asked, runtime):
            if name not in words and not runtime.vocabulary[name].view:
                told = "no net here uses it; give one that does (--net FILE)"
                yield Outcome("kernels", name, UNTRIED, told)
        others = {word.name for word in runtime.vocabulary.values() if not word.view} - words
    computes = f"computes {len(found.names)} of the {len(words)} operations that were asked for"
    more = f"; {len(others)} more are used by no net here (--net FILE)" if others else ""
    yield Outcome("kernels", "in all", KEPT if found.names else UNTRIED, computes + more)
    if found.names:
        yield from _trained(asked)


def updates(runtime: Runtime, asked: Inquiry, precision: str) -> Iterator[Trial]:
    """Compare updates with the reference's. If the plugin's memory guards a step by a negative rate
    (``Allocator.guard``), also check that such a rate changes nothing."""
    judge = Judge(runtime, asked.name, precision)
    guarded = set[str]() if hasattr(judge.allocator, "guard") else None
    for request, values in update_requests(runtime.vocabulary, judge.place, precision):
        if next(judge.offers(request), None) is None:
            continue
        expected = expected_of(runtime, request, values)
        yield from judge.trials(request, values, expected, changes=True)
        word = request.operation
        if guarded is not None and word.name not in guarded:
            guarded.add(word.name)
            named = list(zip(word.inputs, values, strict=True))
            spared = [-value if operand.name == "rate" else value for operand, value in named]
            yield from judge.trials(request, spared, [v for o, v in named if o.updated])


def shared_batches(runtime: Runtime, asked: Inquiry, precision: str) -> Iterator[Trial]:
    """Compare statistics of a batch that several workers share with the reference's."""
    judge = Judge(runtime, asked.name, precision)
    for request, values in shared_batch_requests(runtime.vocabulary, judge.place, precision):
        if next(judge.offers(request), None) is not None:
            yield from judge.trials(request, values, expected_of(runtime, request, values))


_BESIDE = {"": "; with nothing to compare it to", ITS_OWN: f"; compared with {ITS_OWN}"}


class _Found:
    """The operations that were tried; ``names`` has the kernels of each."""

    def __init__(self) -> None:
        self.names: dict[str, set[str]] = {}

    def told(self, trials: Sequence[Trial]) -> Iterator[Outcome]:
        """Yield an outcome for each operation that is new and right, and for each kernel that is not."""
        for operation in dict.fromkeys(trial.operation for trial in trials):
            those = [trial for trial in trials if trial.operation == operation]
            new = operation not in self.names
            if any(not trial.untried for trial in those):
                names = self.names.setdefault(operation, set())
                names |= {trial.kernel for trial in those if not trial.untried}
            wrong: dict[str, list[Trial]] = {}
            untried: dict[str, list[Trial]] = {}
            for trial in those:
                if trial.wrong or trial.untried:
                    (wrong if trial.wrong else untried).setdefault(trial.kernel, []).append(trial)
            for kernel, each in wrong.items():
                first = each[0]
                threads = f"{first.threads} thread{'s' * (first.threads > 1)}"
                told = f"{kernel} ({_precisions(each)}): {threads}: {first.wrong}"
                yield Outcome("kernels", operation, BROKEN, told)
            for kernel, each in untried.items():
                told = f"{kernel} ({_precisions(each)}): {each[0].untried}"
                yield Outcome("kernels", operation, UNTRIED, told)
            right = [trial for trial in those if not trial.wrong and not trial.untried]
            if not wrong and right and new:
                told = f"{'; '.join(sorted(self.names[operation]))} ({_precisions(right)})"
                yield Outcome("kernels", operation, KEPT, told + _BESIDE.get(right[0].beside, ""))


def _precisions(trials: Sequence[Trial]) -> str:
    return ", ".join(dict.fromkeys(trial.precision for trial in trials))


def _trained(asked: Inquiry) -> Iterator[Outcome]:
    for precision in asked.precisions:

        def tried(precision: str = precision) -> str:
            about = asked.plugins, asked.name, precision, asked.hw, asked.options
            far, operations = beside_the_reference(*about)
            if not operations:
                raise UntriedError("it computes no part of it")
            return (
                f"losses are {far:.1g} from the reference's; it computes {operations} of its operations"
            )

        yield outcome("kernels", f"a net trained in {precision}", tried)


def _own_words(asked: Inquiry, runtime: Runtime) -> list[str]:
    if "operations" not in asked.roles:
        return []
    return [word.name for word in asked.asked_of(runtime, "operations")()]
