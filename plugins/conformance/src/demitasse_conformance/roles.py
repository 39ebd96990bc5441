"""The checks of each role of a plugin, as one outcome after the other."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from demitasse import (
    CompositionError,
    DataError,
    DataSpec,
    DescriptionError,
    Finding,
    ModelError,
    PlanError,
    PluginError,
    ShapeError,
    arrange,
    compose,
)
from demitasse_conformance.collectives import check_collective
from demitasse_conformance.computing import kernels
from demitasse_conformance.engines import check_streams
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
from demitasse_conformance.layers import NO_GRADIENT, check_layer
from demitasse_conformance.machines import PLAINEST
from demitasse_conformance.memory import check_allocator
from demitasse_conformance.promises import BrokenPromiseError, hold
from demitasse_conformance.samples import check_epochs, check_shuffling, check_source
from demitasse_conformance.synchronisation import check_sync
from demitasse_conformance.training import check_training
from demitasse_conformance.weights import check_weights

CELL = {"table", "row", "column", "unit", "paper", "predicted"}
LEVELS = ("ok", "note", "problem")


def outcomes(asked: Inquiry) -> Iterator[Outcome]:
    """Yield the outcomes for every role that the plugin's manifest names, in turn. If the plugin cannot
    be composed, yield only that. An exception from its code ends the role that it occurs in, but no
    other. Raises CompositionError or DescriptionError if plugins and machine do not fit together."""
    try:
        with asked.runtime():
            pass
    except PluginError as error:
        if repr(asked.name) not in str(error):  # the fault of a plugin that it is composed with
            raise
        yield Outcome("manifest", asked.name, BROKEN, line(error))
        return
    if clash := _clash(asked):
        yield Outcome("manifest", "beside all plugins", BROKEN, clash)
    for role in asked.roles:
        held = HELD.get(role, _nothing(role))(asked)
        while (found := _next(role, asked, held)) is not None:
            yield found


def _clash(asked: Inquiry) -> str:
    """Return why the plugin cannot be composed with all automatic ones: it has a word of another's."""
    if not {"operations", "layer_types"} & set(asked.roles):
        return ""
    own = [each for each in asked.plugins if getattr(each, "manifest", {}).get("name") == asked.name]
    try:
        with compose(PLAINEST, [*(own or [f"+{asked.name}"]), "+training"]):
            return ""
    except PluginError as error:
        return line(error) if repr(asked.name) in str(error) else ""
    except CompositionError:  # conflicts that the manifests declare
        return ""


def _next(role: str, asked: Inquiry, held: Iterator[Outcome]) -> Outcome | None:
    """Return the next outcome of a role, or the error that ends the role as an outcome."""
    found: list[Outcome] = []

    def tried() -> str:
        found.extend([each] if (each := next(held, None)) is not None else [])
        return ""

    ended = outcome(role, asked.name, tried, DescriptionError)
    if ended.status == KEPT:
        return found[0] if found else None
    return ended


def _nothing(role: str) -> Callable[[Inquiry], Iterator[Outcome]]:
    def untried(asked: Inquiry) -> Iterator[Outcome]:
        yield Outcome(role, asked.name, UNTRIED, "the kit has no check for it")

    return untried


def layer_types(asked: Inquiry) -> Iterator[Outcome]:
    """Check the gradients of the given nets, and of each type by itself if it takes one blob and needs
    no parameters."""
    with asked.runtime() as runtime:
        layers = asked.layers(runtime)
    for path in asked.nets:

        def tried(path: Path = path) -> str:
            return _gradients(asked, path)

        yield outcome("layer_types", path.name, tried)
    for layer, name in layers.items():

        def alone(layer: str = layer) -> str:
            try:
                return _gradients(asked, layer, SHAPE)
            except (ModelError, ShapeError) as error:
                raise UntriedError(f"{line(error)}; give a net with it (--net FILE)") from error

        yield outcome("layer_types", name, alone)


def _gradients(asked: Inquiry, *about: Any) -> str:
    try:
        return f"gradients are slopes: {', '.join(check_layer(asked.plugins, *about))}"
    except BrokenPromiseError as error:
        if str(error).endswith(NO_GRADIENT):
            raise UntriedError(str(error)) from error
        raise


def allocator(asked: Inquiry) -> Iterator[Outcome]:
    """Check the allocator of each space that the manifest names, or of the machine's workers."""
    with asked.runtime() as runtime:
        hook = asked.asked_of(runtime, "allocator")
        workers = arrange(runtime.machine, "float64")
        declared = [each.replace("*", "0") for each in asked.facts("allocator", "spaces")]
        for space in declared or dict.fromkeys(worker.space for worker in workers):

            def tried(space: str = space) -> str:
                made = hook(space=space)
                if made is None:
                    none = f"it gives none for {space!r}; give a machine with one (--hw MACHINE)"
                    raise UntriedError(none)
                check_allocator(made)
                return "blocks, and arrays over them"

            yield outcome("allocator", space, tried)


def stream_engine(asked: Inquiry) -> Iterator[Outcome]:
    """Check the protocol of streams, sentence by sentence."""

    def tried() -> str:
        space = check_streams(asked.plugins, asked.name, asked.hw, **asked.options)
        return f"each sentence of the protocol, in {space}"

    yield outcome("stream_engine", asked.name, tried)


def gradient_sync(asked: Inquiry) -> Iterator[Outcome]:
    """Compare siblings with one worker."""
    for workers in asked.workers if asked.hw is None else (0,):
        subject = f"{workers} threads" if workers else str(asked.hw)

        def tried(workers: int = workers) -> str:
            about = asked.plugins, asked.name, None, None, workers, asked.promise, asked.hw
            try:
                apart = check_sync(*about, **asked.sync)
            except (CompositionError, PlanError) as error:
                more = "; give a machine that it synchronises (--hw MACHINE)" if asked.hw is None else ""
                raise UntriedError(line(error) + more) from error
            return f"{asked.promise}: {apart:.1g} from one worker's parameters"

        yield outcome("gradient_sync", subject, tried, DescriptionError if asked.sync else ())


def collectives(asked: Inquiry) -> Iterator[Outcome]:
    """Prove and run each algorithm."""
    with asked.runtime() as runtime:
        made = dict(asked.asked_of(runtime, "collectives")())
    for name, algorithm in made.items():

        def tried(algorithm: Any = algorithm) -> str:
            try:
                proved = check_collective(algorithm)
            except PlanError as error:
                raise BrokenPromiseError(str(error)) from error
            return f"{proved} schedules proved: {', '.join(algorithm.goals)}"

        yield outcome("collectives", name, tried)


def model_writer(asked: Inquiry) -> Iterator[Outcome]:
    """Read back what is written in each format."""
    for suffix in asked.facts("model_writer", "suffixes"):

        def tried(suffix: str = suffix) -> str:
            return f"what it wrote can be read: {', '.join(check_weights(asked.plugins, suffix))}"

        yield outcome("model_writer", suffix, tried)


def model_reader(asked: Inquiry) -> Iterator[Outcome]:
    """Read the given nets that are files in the plugin's format."""
    suffixes = asked.facts("model_reader", "suffixes")
    mine = [path for path in asked.nets if path.name.endswith(tuple(suffixes))]
    if not mine:
        told = f"no file to read was given: --net FILE ({', '.join(suffixes)})"
        yield Outcome("model_reader", asked.name, UNTRIED, told)
    for path in mine:

        def tried(path: Path = path) -> str:
            with asked.runtime() as runtime:
                return f"{len(runtime.read(path).net('test').layers)} layers"

        yield outcome("model_reader", path.name, tried)


def data_source(asked: Inquiry) -> Iterator[Outcome]:
    """Check the order of the samples of each given source."""
    if not asked.sources:
        yield Outcome("data_source", asked.name, UNTRIED, "no samples were given: --source PATH")
    for source in asked.sources:

        def tried(source: str = source) -> str:
            with asked.runtime() as runtime:
                hook = asked.asked_of(runtime, "data_source")
                opened = hook(spec=DataSpec(source))
                if opened is None:
                    raise UntriedError("it says that these samples belong to another plugin")
                if getattr(opened, "varies", False):
                    raise UntriedError("its samples have different shapes")
                check_source(opened)
                check_epochs(opened)
                told = f"{opened.size:,} samples of {', '.join(opened.fields)}, in one order"
                told += ", however they are divided"
                with contextlib.suppress(DataError):  # not every kind can be shuffled
                    shuffled = hook(spec=DataSpec(source, shuffle=True, seed=1))
                    check_source(shuffled)
                    shuffled.close()
                    told += "; shuffled, too"
                    if check_shuffling(
                        lambda seed: hook(spec=DataSpec(source, shuffle=True, seed=seed)), opened
                    ):
                        told += ", each once in an epoch"
                opened.close()
                return told

        yield outcome("data_source", source, tried)


def tuner(asked: Inquiry) -> Iterator[Outcome]:
    """Train a net with the kernels that the tuner chose."""

    def tried() -> str:
        far = check_training(asked.plugins, asked.name, "f64", asked.hw or PLAINEST, asked.options)
        return f"with what it chose, losses are {far:.1g} from the reference's"

    yield outcome("tuner", "a net trained in f64", tried)


def observe(asked: Inquiry) -> Iterator[Outcome]:
    """Run a training that the listener observes."""

    def tried() -> str:
        with asked.runtime() as runtime:
            if asked.asked_of(runtime, "observe")() is None:
                raise UntriedError("it observes nothing, with the options given")
        check_training(asked.plugins, asked.name, "f64", PLAINEST, asked.options)
        return "it was called, and training was the same"

    yield outcome("observe", "a training", tried)


def probe(asked: Inquiry) -> Iterator[Outcome]:
    """Arrange workers on the machine that the probe finds."""
    with compose("auto", asked.plugins) as runtime:
        workers = arrange(runtime.machine, "float32")
        levels = ", ".join(f"{level.count} {level.name}" for level in runtime.machine.levels)
        yield Outcome("probe", "this machine", KEPT, f"{levels}; {len(workers)} workers")


def processes(asked: Inquiry) -> Iterator[Outcome]:
    """Report how many processes the plugin finds; this one was started alone."""
    with asked.runtime() as runtime:
        made = asked.asked_of(runtime, "processes")(machine=runtime.machine)
        size = 1 if made is None else made.size
        if made is not None:
            made.close()
    told = "one process, as started; its own tests use mpiexec" if size == 1 else f"it finds {size}"
    yield Outcome("processes", "this process", KEPT, told)


def diagnose(asked: Inquiry) -> Iterator[Outcome]:
    """Check that each finding has a valid level."""
    with asked.runtime() as runtime:
        hook = dict(runtime.composition.serving("diagnose"))[asked.name]
        found = list(hook(topics=()))
    for each in found:
        if not isinstance(each, Finding) or each.level not in LEVELS:
            told = f"{each!r:.99} is not a Finding whose level is known (valid: {', '.join(LEVELS)})"
            yield Outcome("diagnose", asked.name, BROKEN, told)
            return
    yield Outcome("diagnose", asked.name, KEPT, f"{len(found)} findings; demitasse doctor shows them")


def operations(asked: Inquiry) -> Iterator[Outcome]:
    """Compose its operations with those of the others, which checks their gradient rules."""
    with asked.runtime() as runtime:
        words = [word.name for word in asked.asked_of(runtime, "operations")()]
    yield Outcome("operations", asked.name, KEPT, f"{len(words)} fit into the vocabulary")


def programs(asked: Inquiry) -> Iterator[Outcome]:
    """Check that each program that the manifest names is a function."""
    yield from _named(asked, "programs", callable, "function")


def commands(asked: Inquiry) -> Iterator[Outcome]:
    """Check that each command that the manifest names is a click command."""
    import click

    yield from _named(asked, "commands", lambda made: isinstance(made, click.Command), "click command")


def _named(asked: Inquiry, role: str, right: Callable[[Any], bool], kind: str) -> Iterator[Outcome]:
    """Compare what a hook returns by name with what the manifest names."""
    declared = set(asked.facts(role, role))
    with asked.runtime() as runtime:
        made = dict(runtime.composition.serving(role))[asked.name]()
    for name in sorted(declared | set(made)):
        if name not in made or name not in declared:
            whose = "manifest" if name in made else "hook"
            yield Outcome(role, name, BROKEN, f"the plugin's {whose} does not name it")
        elif not right(made[name]):
            yield Outcome(role, name, BROKEN, f"{made[name]!r:.60} is not a {kind}")
        else:
            yield Outcome(role, name, KEPT, f"a {kind}")


def reproductions(asked: Inquiry) -> Iterator[Outcome]:
    """Check the cells of each paper that the manifest names."""
    with asked.runtime() as runtime:
        hook = dict(runtime.composition.serving("reproductions"))[asked.name]
        for paper in asked.facts("reproductions", "papers"):

            def tried(paper: str = paper) -> str:
                made = hook(paper=paper)
                hold(isinstance(made, Mapping), f"it returned {made!r:.99}, which is not a mapping")
                cells = list(made.get("cells", ()))
                hold(cells, "there are no cells")
                for cell in cells:
                    hold(isinstance(cell, Mapping), f"a cell is not a mapping: {cell!r:.99}")
                    lacking = sorted(CELL - set(cell))
                    hold(not lacking, f"a cell has no {', '.join(lacking)}: {cell!r:.99}")
                    for key in ("paper", "predicted"):
                        told = f"{key} is neither a finite number nor None: {cell!r:.99}"
                        hold(_finite(cell[key]), told)
                return f"{len(cells)} cells"

            yield outcome("reproductions", paper, tried)


def _finite(value: Any) -> bool:
    return value is None or (isinstance(value, Real) and math.isfinite(value))


HELD: Mapping[str, Callable[[Inquiry], Iterator[Outcome]]] = {
    each.__name__: each
    for each in (
        probe,
        allocator,
        operations,
        kernels,
        tuner,
        gradient_sync,
        processes,
        collectives,
        stream_engine,
        data_source,
        layer_types,
        model_reader,
        model_writer,
        programs,
        reproductions,
        commands,
        observe,
        diagnose,
    )
}
"""The check of each role, by its hook."""
