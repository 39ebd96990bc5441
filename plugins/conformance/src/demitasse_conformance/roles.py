"""What each role of a plugin is held to, as one outcome after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from numbers import Real
from typing import Any

from demitasse import (
    CompositionError,
    DataSpec,
    DemitasseError,
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
from demitasse_conformance.inquiry import BROKEN, KEPT, SHAPE, UNTRIED, Inquiry, Outcome, line
from demitasse_conformance.layers import NO_GRADIENT, check_layer
from demitasse_conformance.machines import PLAINEST
from demitasse_conformance.memory import check_allocator
from demitasse_conformance.promises import BrokenPromiseError
from demitasse_conformance.samples import check_source
from demitasse_conformance.synchronisation import check_sync
from demitasse_conformance.training import check_training
from demitasse_conformance.weights import check_weights

CELL = {"table", "row", "column", "unit", "paper", "predicted"}
LEVELS = ("ok", "note", "problem")


def outcomes(asked: Inquiry) -> Iterator[Outcome]:
    """Every role that the plugin's manifest names, in turn; of one that cannot be composed, only that.
    An error that is no broken promise, as of a device that is not there, leaves the rest of that role
    untried. Raises CompositionError and DescriptionError for plugins and a machine that do not go
    together."""
    try:
        with asked.runtime():
            pass
    except PluginError as error:
        yield Outcome("manifest", asked.name, BROKEN, line(error))
        return
    for role in asked.roles:
        try:
            yield from HELD.get(role, _nothing(role))(asked)
        except (AssertionError, PluginError) as error:
            yield Outcome(role, asked.name, BROKEN, line(error))
        except DemitasseError as error:
            yield Outcome(role, asked.name, UNTRIED, line(error))


def _nothing(role: str) -> Callable[[Inquiry], Iterator[Outcome]]:
    def untried(asked: Inquiry) -> Iterator[Outcome]:
        yield Outcome(role, asked.name, UNTRIED, "the kit has nothing to hold it to")

    return untried


def layer_types(asked: Inquiry) -> Iterator[Outcome]:
    """The gradients of the nets that were given, and of each type by itself, where it takes one blob
    and needs no parameters."""
    with asked.runtime() as runtime:
        layers = asked.layers(runtime)
    for path in asked.nets:
        yield _gradients(asked, path.name, path)
    for layer, name in layers.items():
        yield _gradients(asked, name, layer, SHAPE)


def _gradients(asked: Inquiry, subject: str, *about: Any) -> Outcome:
    try:
        found = check_layer(asked.plugins, *about)
    except BrokenPromiseError as error:
        status = UNTRIED if str(error).endswith(NO_GRADIENT) else BROKEN
        return Outcome("layer_types", subject, status, line(error))
    except (ModelError, ShapeError, PlanError) as error:
        return Outcome("layer_types", subject, UNTRIED, f"{line(error)}; --net FILE names a net with it")
    return Outcome("layer_types", subject, KEPT, f"gradients are slopes: {', '.join(found)}")


def allocator(asked: Inquiry) -> Iterator[Outcome]:
    """The allocator of each space that the manifest names, or of the machine's workers."""
    with asked.runtime() as runtime:
        hook = asked.asked_of(runtime, "allocator")
        workers = arrange(runtime.machine, "float64")
        declared = [each.replace("*", "0") for each in asked.facts("allocator", "spaces")]
        for space in declared or dict.fromkeys(worker.space for worker in workers):
            try:
                made = hook(space=space)
                if made is None:
                    raise PlanError(
                        f"it gives none for {space!r}; --hw FILE describes a machine with one"
                    )
                check_allocator(made)
            except BrokenPromiseError as error:
                yield Outcome("allocator", space, BROKEN, line(error))
            except DemitasseError as error:
                yield Outcome("allocator", space, UNTRIED, line(error))
            else:
                yield Outcome("allocator", space, KEPT, "blocks, and arrays over them")


def stream_engine(asked: Inquiry) -> Iterator[Outcome]:
    """The protocol of streams, sentence by sentence."""
    space = check_streams(asked.plugins, asked.name, asked.hw, **asked.options)
    yield Outcome("stream_engine", space, KEPT, "each sentence of the protocol")


def gradient_sync(asked: Inquiry) -> Iterator[Outcome]:
    """Siblings beside one worker."""
    for workers in asked.workers if asked.hw is None else (0,):
        subject = f"{workers} threads" if workers else str(asked.hw)
        about = asked.plugins, asked.name, None, None, workers, asked.promise, asked.hw
        try:
            apart = check_sync(*about, **asked.sync)
        except (CompositionError, PlanError, DescriptionError) as error:
            told = f"{line(error)}; --hw FILE describes a machine that it synchronises"
            yield Outcome("gradient_sync", subject, UNTRIED, told)
            return
        except AssertionError as error:
            yield Outcome("gradient_sync", subject, BROKEN, line(error))
        else:
            told = f"{asked.promise}: {apart:.1g} from one worker's parameters"
            yield Outcome("gradient_sync", subject, KEPT, told)


def collectives(asked: Inquiry) -> Iterator[Outcome]:
    """Each algorithm, proved and run."""
    with asked.runtime() as runtime:
        made = runtime.composition.offered("collectives")
        mine = {
            name: each for name, each in made.items() if name in asked.asked_of(runtime, "collectives")()
        }
    for name, algorithm in mine.items():
        try:
            proved = check_collective(algorithm)
        except (AssertionError, PlanError) as error:
            yield Outcome("collectives", name, BROKEN, line(error))
        else:
            goals = ", ".join(algorithm.goals)
            yield Outcome("collectives", name, KEPT, f"{proved} schedules proved: {goals}")


def model_writer(asked: Inquiry) -> Iterator[Outcome]:
    """What is written in each format, read again."""
    for suffix in asked.facts("model_writer", "suffixes"):
        try:
            has = check_weights(asked.plugins, suffix)
        except AssertionError as error:
            yield Outcome("model_writer", suffix, BROKEN, line(error))
        except ModelError as error:
            yield Outcome("model_writer", suffix, UNTRIED, line(error))
        else:
            yield Outcome("model_writer", suffix, KEPT, f"what it wrote is read: {', '.join(has)}")


def model_reader(asked: Inquiry) -> Iterator[Outcome]:
    """The nets that were given, as far as they are files of its own."""
    suffixes = asked.facts("model_reader", "suffixes")
    mine = [path for path in asked.nets if path.name.endswith(tuple(suffixes))]
    if not mine:
        told = f"no such file was named: --net FILE ({', '.join(suffixes)})"
        yield Outcome("model_reader", asked.name, UNTRIED, told)
    for path in mine:
        with asked.runtime() as runtime:
            layers = runtime.read(path).net("test").layers
            yield Outcome("model_reader", path.name, KEPT, f"{len(layers)} layers")


def data_source(asked: Inquiry) -> Iterator[Outcome]:
    """The order of the samples of each source that was given."""
    if not asked.sources:
        yield Outcome("data_source", asked.name, UNTRIED, "no samples were named: --source PATH")
    for source in asked.sources:
        with asked.runtime() as runtime:
            opened = asked.asked_of(runtime, "data_source")(spec=DataSpec(source))
            if opened is None:
                told = "it says that these are another's samples"
                yield Outcome("data_source", source, UNTRIED, told)
                continue
            try:
                check_source(opened)
            except BrokenPromiseError as error:
                yield Outcome("data_source", source, BROKEN, line(error))
            else:
                told = f"{opened.size:,} samples of {', '.join(opened.fields)}, in one order"
                yield Outcome("data_source", source, KEPT, f"{told} however they are shared")
            finally:
                opened.close()


def tuner(asked: Inquiry) -> Iterator[Outcome]:
    """A net trained with what it chose."""
    far = check_training(asked.plugins, asked.name, "f64", asked.hw or PLAINEST, asked.options)
    told = f"with what it chose, losses are {far:.1g} from the reference's"
    yield Outcome("tuner", "a net trained in f64", KEPT, told)


def observe(asked: Inquiry) -> Iterator[Outcome]:
    """A training that it listens to."""
    far = check_training(asked.plugins, asked.name, "f64", PLAINEST, asked.options)
    yield Outcome("observe", "a training", KEPT, f"heard, losses are {far:.1g} from the reference's")


def probe(asked: Inquiry) -> Iterator[Outcome]:
    """What it finds of this machine, as a machine that workers are arranged on."""
    with compose("auto", asked.plugins) as runtime:
        workers = arrange(runtime.machine, "float32")
        levels = ", ".join(f"{level.count} {level.name}" for level in runtime.machine.levels)
        yield Outcome("probe", "this machine", KEPT, f"{levels}; {len(workers)} workers")


def processes(asked: Inquiry) -> Iterator[Outcome]:
    """Whether it says that this process is alone."""
    with asked.runtime() as runtime:
        made = asked.asked_of(runtime, "processes")(machine=runtime.machine)
        size = 1 if made is None else made.size
        if made is not None:
            made.close()
    told = "alone, as it is; mpiexec is for its own tests" if size == 1 else f"it finds {size}"
    yield Outcome("processes", "this process", KEPT, told)


def diagnose(asked: Inquiry) -> Iterator[Outcome]:
    """What it finds, each of a level that there is."""
    with asked.runtime() as runtime:
        hook = dict(runtime.composition.serving("diagnose"))[asked.name]
        found = list(hook(topics=()))
    for each in found:
        if not isinstance(each, Finding) or each.level not in LEVELS:
            told = f"{each!r:.99} is no Finding of a level that there is ({', '.join(LEVELS)})"
            yield Outcome("diagnose", asked.name, BROKEN, told)
            return
    yield Outcome("diagnose", asked.name, KEPT, f"{len(found)} findings; demitasse doctor shows them")


def operations(asked: Inquiry) -> Iterator[Outcome]:
    """Its operations, among those of the others: to compose them checks their gradient rules."""
    with asked.runtime() as runtime:
        words = [word.name for word in asked.asked_of(runtime, "operations")()]
    yield Outcome("operations", asked.name, KEPT, f"{len(words)} go with the vocabulary")


def programs(asked: Inquiry) -> Iterator[Outcome]:
    """Each program that the manifest names is a function."""
    yield from _named(asked, "programs", callable, "function")


def commands(asked: Inquiry) -> Iterator[Outcome]:
    """Each command that the manifest names is one of click's."""
    import click

    yield from _named(asked, "commands", lambda made: isinstance(made, click.Command), "click command")


def _named(asked: Inquiry, role: str, right: Callable[[Any], bool], kind: str) -> Iterator[Outcome]:
    """What a hook gives by name, beside what the manifest names."""
    declared = set(asked.facts(role, role))
    with asked.runtime() as runtime:
        made = dict(runtime.composition.serving(role))[asked.name]()
    for name in sorted(declared | set(made)):
        if name not in made or name not in declared:
            whose = "manifest" if name in made else "hook"
            yield Outcome(role, name, BROKEN, f"the plugin's {whose} does not name it")
        elif not right(made[name]):
            yield Outcome(role, name, BROKEN, f"{made[name]!r:.60} is no {kind}")
        else:
            yield Outcome(role, name, KEPT, f"a {kind}")


def reproductions(asked: Inquiry) -> Iterator[Outcome]:
    """The cells of each paper that the manifest names."""
    with asked.runtime() as runtime:
        hook = dict(runtime.composition.serving("reproductions"))[asked.name]
        for paper in asked.facts("reproductions", "papers"):
            cells = list((hook(paper=paper) or {}).get("cells", ()))
            wrong = "" if cells else "there are no cells"
            for cell in cells:
                if lacking := sorted(CELL - set(cell)):
                    wrong = f"a cell has no {', '.join(lacking)}: {cell!r:.99}"
                for key in ("paper", "predicted"):
                    if not _finite(cell.get(key)):
                        wrong = f"{key} is neither a finite number nor None: {cell!r:.99}"
            status = BROKEN if wrong else KEPT
            yield Outcome("reproductions", paper, status, wrong or f"{len(cells)} cells")


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
"""How each role is held to its promises, by its hook."""
