"""Well-known Python layers, as composed layer types that compute the same: no foreign code is run."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from demitasse import Location, ModelError, shortened
from demitasse_caffe.schema import Schema

Given = Mapping[str, Any]


Placed = tuple[Any, Location]
"""A layer's message and its location."""


def with_known_types(
    layers: Sequence[Placed], schema: Schema, phase: str
) -> tuple[list[Placed], list[str]]:
    """Return the layers, with those of type Python replaced by composed types that compute what their
    modules do, and a sentence about each module. Raise ModelError for a param_str that the module could
    not read."""
    told: dict[str, list[str]] = {}
    made = [(_with_known_type(message, place, schema, phase), place) for message, place in layers]
    for (message, place), (now, _) in zip(layers, made, strict=True):
        if now is not message:
            python = message.python_param
            module = f"{python.module}.{python.layer} is computed by type {now.type}"
            told.setdefault(module, []).append(f"{place}: layer {message.name!r}")
    return made, [
        f"{first}{f' and {len(more)} more' if more else ''}: {module}; +python_layer runs the module"
        for module, (first, *more) in told.items()
    ]


def _with_known_type(message: Any, place: Location, schema: Schema, phase: str) -> Any:
    """Return the replaced layer, or the layer itself if no type computes what it does, if the module is
    to be run, or if the module is another one of that name."""
    named = message.python_param.module, message.python_param.layer
    known = _KNOWN.get(named)
    if message.type != "Python" or known is None or schema.runs_python or known[0] not in schema.types:
        return message
    kind, fill, names = known
    made = type(message)()
    made.CopyFrom(message)
    made.type = kind
    try:
        given = _given(message.python_param.param_str)
        if not given.keys() <= names:
            return message  # a module of the same name that can do more
        fill(made, given, phase)
    except TypeError:
        return message  # for example FPN's proposals, which have a feat_stride for each level
    except (ValueError, SyntaxError, LookupError, ArithmeticError) as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ModelError(
            f"{place}: layer {message.name!r} (Python): {'.'.join(named)} cannot use param_str "
            f"{shortened(message.python_param.param_str, quoted=True)}: {shortened(why)}"
        ) from error
    return made


def _given(text: str) -> Given:
    """Parse a param_str: a dictionary in the syntax of Python or JSON, or YAML's lines of
    names and values."""
    text = text.replace("!!python/tuple", "").strip()
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = _literal(text)
    else:
        lines = (line.partition(":") for line in text.splitlines() if line.strip())
        found = {name.strip().strip("'\""): _literal(value.strip()) for name, _, value in lines}
    if not isinstance(found, dict):
        raise ValueError("it is not a dictionary")
    return found


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (MemoryError, RecursionError) as error:  # Python's parser raises either
        raise ValueError("it is nested too deeply") from error


def _proposal(layer: Any, given: Given, phase: str) -> None:
    """Fill in py-faster-rcnn's defaults for a phase (``fast_rcnn/config.py``)."""
    about, training = layer.proposal_param, phase == "train"
    about.feat_stride = given["feat_stride"]
    about.scale.extend(map(float, given.get("scales", ())))
    about.pre_nms_topn, about.post_nms_topn = (12000, 2000) if training else (6000, 300)


def _spatial_dropout(layer: Any, given: Given, phase: str) -> None:
    """Fill in the ratio. The layer's own parameter ``phase`` decides whether it drops; if it does not,
    it scales up instead."""
    ratio = float(given["p"])
    if given["phase"] == "TRAIN":
        layer.dropout_param.dropout_ratio = ratio
        layer.dropout_param.sample_weights_test = True
    else:
        layer.type = "Power"
        layer.power_param.scale = 1 / (1 - ratio)


_KNOWN: Mapping[tuple[str, str], tuple[str, Callable[[Any, Given, str], None], frozenset[str]]] = {
    ("rpn.proposal_layer", "ProposalLayer"): (
        *("Proposal", _proposal),
        frozenset({"feat_stride", "scales"}),
    ),
    ("spatial_dropout", "SpatialDropoutLayer"): (
        *("SpatialDropout", _spatial_dropout),
        frozenset({"phase", "p"}),
    ),
}
"""By module and class: the type, the function that fills in the module's parameters, and their names.
The modules are those of Faster R-CNN and ENet."""
