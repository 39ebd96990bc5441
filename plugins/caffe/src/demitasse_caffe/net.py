"""A net file as the layers of one phase."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from demitasse import Layer, Location, ModelError, NetDefinition
from demitasse_caffe.coordinates import crop_note
from demitasse_caffe.fork_fields import TYPES
from demitasse_caffe.outline import Change, Outline
from demitasse_caffe.paths import FILES, moved
from demitasse_caffe.python_layers import with_known_types
from demitasse_caffe.schema import Schema, is_repeated, number
from demitasse_caffe.shared_parameters import with_common_multipliers
from demitasse_caffe.text import not_a_model, parse, read_text, which
from demitasse_caffe.upgrade import upgrade_net

PHASES = {"train": 0, "test": 1}

CLASSIFY = {"Accuracy", "HingeLoss", "InfogainLoss", "MultinomialLogisticLoss", "SoftmaxWithLoss"}
"""Layer types whose second bottom holds classes."""


@dataclass(frozen=True)
class NetFile:
    """A net in the current format, with all phases and the location of each layer. ``misfit`` is the
    error about a field that no message has, and ``changes`` are those about forks' fields; they are
    raised for phases in which every layer is of a known type. ``notes`` say what was ignored."""

    message: Any
    places: tuple[Location, ...]
    location: Location
    misfit: str = ""
    notes: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()


def read_net(path: Path, schema: Schema) -> NetFile:
    """Return the net in a file. Raise ModelError with file and line."""
    text = read_text(path)
    outline = Outline(text)
    kind = which(outline, schema)
    if kind != "NetParameter":
        raise ModelError(
            f"{path}: is a solver; a net is needed here" if kind else not_a_model(path, outline, schema)
        )
    return net_file(path, parse(path, text, outline, kind, schema), outline, schema)


def net_file(
    path: Path,
    message: Any,
    outline: Outline,
    schema: Schema,
    within: tuple[str, ...] = (),
    skip: int = 0,
) -> NetFile:
    """Return a parsed net with its locations: those of the blocks at the path ``within`` in the outline,
    after ``skip`` layers of earlier nets."""
    count = len(message.layer) + len(message.layers)
    new, old = (outline.lines((*within, name)) for name in ("layer", "layers"))
    if message.layer and message.layers and new and old:
        raise ModelError(
            f"{path}:{old[0]}: has both 'layers' (the form before 2014) and, in line {new[0]}, 'layer'; "
            f"use one of them"
        )
    lines, location = sorted(new + old), Location(str(path))
    upgraded, places = upgrade_net(
        message, lines[skip : skip + count], outline.line("input", within), location, schema
    )
    told = crop_note(upgraded.layer, places), _balance_note(upgraded.layer, path)
    notes = (*outline.notes, *filter(None, told))
    changes = tuple(outline.changes)
    return NetFile(upgraded, tuple(places), location, outline.misfit, notes, changes)


def _balance_note(layers: Sequence[Any], path: Path) -> str:
    """Return a sentence about a loss that the forks of the net's data layer have changed; ""
    if there is none."""
    if not {"ImageLabelmapData", "SigmoidCrossEntropyLoss"} <= {layer.type for layer in layers}:
        return ""
    return (
        f"{path}: SigmoidCrossEntropyLoss weights all pixels alike, as in BVLC Caffe; forks that have "
        f"ImageLabelmapData and that loss (HED's, RCF's) weight edges against the rest, as "
        f"SigmoidCrossEntropyBalanceLoss does"
    )


def define(net: NetFile, state: Any, schema: Schema) -> NetDefinition:
    """Return the layers whose rules match the state (a NetState: phase, level, stages)."""
    chosen, left_out = list[tuple[Any, Location]](), dict[str, str]()
    positions: list[int] = []
    for position, (message, place) in enumerate(zip(net.message.layer, net.places, strict=True), 1):
        if message.include and message.exclude:
            raise ModelError(
                f"{place}: layer {message.name!r}: has include and exclude rules; use one kind"
            )
        if any(_meets(rule, state) for rule in message.include) or (
            not message.include and not any(_meets(rule, state) for rule in message.exclude)
        ):
            chosen.append((message, place))
            positions.append(position)
        else:
            rules = "include" if message.include else "exclude"
            told = (
                f"layer {message.name!r} ({place}), which makes it, is left out by its {rules} rules "
                f"{_told(state)}"
            )
            left_out |= dict.fromkeys(message.top, told)
    phase = next(name for name, value in PHASES.items() if value == state.phase)
    chosen, known = with_known_types(chosen, schema, phase)
    layers = [
        _layer(message, place, schema, position)
        for (message, place), position in zip(with_common_multipliers(chosen), positions, strict=True)
    ]
    if all(layer.type in schema.types for layer in layers):
        if net.misfit:
            raise ModelError(net.misfit)
        lines = {place.line for _, place in chosen}
        for change in net.changes:
            if change.line in lines and not (change.trains and phase == "test"):
                raise ModelError(change.told)
    foreign = {
        layer.type: TYPES[layer.type]
        for layer in layers
        if layer.type in TYPES and layer.type not in schema.types
    }
    found = (note for message, place in chosen for note in _moved(message, place))
    notes = (*net.notes, *found, *known)
    return NetDefinition(
        net.message.name, phase, _with_classes(layers), net.location, left_out, notes, foreign
    )


def _moved(message: Any, place: Location) -> Iterator[str]:
    """Yield a note for each file of a layer that is found elsewhere than at the path in the layer."""
    for descriptor, part in message.ListFields():
        if descriptor.message_type is not None and not is_repeated(descriptor):
            for name in FILES:
                # A third-party type may have a number with this name.
                if isinstance(written := getattr(part, name, None), str):
                    yield from moved(written, place.file, f"{place}: layer {message.name!r}: {name}")


def _told(state: Any) -> str:
    phase = next(name for name, value in PHASES.items() if value == state.phase)
    stages = ", ".join(map(repr, state.stage)) or "none"
    return f"(phase {phase}, level {state.level}, stages: {stages})"


def state_of(net: NetFile, phase: str, schema: Schema, *others: Any) -> Any:
    """Return the NetState of a phase: the phase, then the net's own state, then ``others``, merged in
    this order."""
    state = schema.message("NetState")
    state.phase = PHASES[phase]
    for more in (net.message.state, *others):
        state.MergeFrom(more)
    return state


def _meets(rule: Any, state: Any) -> bool:
    return (
        (not rule.HasField("phase") or rule.phase == state.phase)
        and (not rule.HasField("min_level") or state.level >= rule.min_level)
        and (not rule.HasField("max_level") or state.level <= rule.max_level)
        and all(stage in state.stage for stage in rule.stage)
        and not any(stage in state.stage for stage in rule.not_stage)
    )


def _layer(message: Any, place: Location, schema: Schema, position: int) -> Layer:
    """Return the layer. A layer without a name is named after its line, or its position in a file
    without lines."""
    if not message.type:
        raise ModelError(f"{place}: layer {message.name!r}: has no type")
    return Layer(
        name=message.name or f"{message.type}@{place.line or position}",
        type=message.type,
        bottoms=tuple(message.bottom),
        tops=tuple(message.top),
        parameters=schema.parameters(message),
        location=place,
        loss_weights=tuple(number(weight) for weight in message.loss_weight),
    )


def _with_classes(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Return the layers; where DummyData fills a blob that others read as classes, it fills
    it with whole numbers. Caffe truncates such values, and benchmark files fill images and
    labels alike with 0.01."""
    classes = {layer.bottoms[1] for layer in layers if layer.type in CLASSIFY and layer.bottoms[1:]}
    return tuple(
        _cut_off(layer, classes) if layer.type == "DummyData" and classes & {*layer.tops} else layer
        for layer in layers
    )


def _cut_off(layer: Layer, classes: Collection[str]) -> Layer:
    message = type(layer.parameters)()
    message.CopyFrom(layer.parameters)
    fillers = message.dummy_data_param.data_filler
    if len(fillers) == 1 < len(layer.tops):
        fillers.extend([fillers[0]] * (len(layer.tops) - 1))
    for top, filler in zip(layer.tops, fillers, strict=False):
        if top in classes and filler.type == "constant" and math.isfinite(filler.value):
            filler.value = math.trunc(filler.value)
    return replace(layer, parameters=message)


def check_phase(phase: str) -> None:
    """Raise ModelError for a phase that is neither train nor test."""
    if not isinstance(phase, str) or phase not in PHASES:
        raise ModelError(f"unknown phase {phase!r:.99} (valid: {', '.join(PHASES)})")
