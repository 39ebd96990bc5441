"""Layers in Python that the nets of many name, as types that compute the same: nobody's code is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from demitasse import Location, ModelError
from demitasse_caffe.schema import Schema

Given = Mapping[str, Any]


def with_known_type(message: Any, place: Location, schema: Schema, phase: str) -> tuple[Any, str]:
    """A layer of type Python as the composed type that computes what its module does, and a sentence
    about it; the layer itself, and none, where no type does, or the module is to be run. Raises
    ModelError for a param_str that the module could not read."""
    named = message.python_param.module, message.python_param.layer
    known = _KNOWN.get(named)
    if message.type != "Python" or known is None or schema.runs_python or known[0] not in schema.types:
        return message, ""
    kind, fill = known
    made = type(message)()
    made.CopyFrom(message)
    made.type = kind
    where = f"{place}: layer {message.name!r} (Python)"
    try:
        fill(made, _given(message.python_param.param_str), phase)
    except (ValueError, SyntaxError, LookupError, TypeError, ArithmeticError) as error:
        text = message.python_param.param_str
        raise ModelError(
            f"{where}: {'.'.join(named)} cannot do with param_str {text!r}: {error}"
        ) from error
    told = f"{'.'.join(named)} is computed by type {made.type}; +python_layer runs the module"
    return made, f"{where}: {told}"


def _given(text: str) -> Given:
    """What a param_str says: a dictionary as Python writes it, or YAML's lines of names and values."""
    text = text.replace("!!python/tuple", "").strip()
    if text.startswith("{"):
        found = ast.literal_eval(text)
    else:
        lines = (line.partition(":") for line in text.splitlines() if line.strip())
        found = {name.strip().strip("'\""): ast.literal_eval(value.strip()) for name, _, value in lines}
    if not isinstance(found, dict):
        raise ValueError("it is no dictionary")
    return found


def _proposal(layer: Any, given: Given, phase: str) -> None:
    """As py-faster-rcnn's defaults for a phase are (``fast_rcnn/config.py``)."""
    about, training = layer.proposal_param, phase == "train"
    about.feat_stride = given["feat_stride"]
    about.scale.extend(map(float, given.get("scales", ())))
    about.pre_nms_topn, about.post_nms_topn = (12000, 2000) if training else (6000, 300)


def _spatial_dropout(layer: Any, given: Given, phase: str) -> None:
    """Whether it drops is by its own word for the phase; where it does not, it scales up as well."""
    ratio = float(given["p"])
    if given["phase"] == "TRAIN":
        layer.dropout_param.dropout_ratio = ratio
        layer.dropout_param.sample_weights_test = True
    else:
        layer.type = "Power"
        layer.power_param.scale = 1 / (1 - ratio)


_KNOWN: Mapping[tuple[str, str], tuple[str, Callable[[Any, Given, str], None]]] = {
    ("rpn.proposal_layer", "ProposalLayer"): ("Proposal", _proposal),
    ("spatial_dropout", "SpatialDropoutLayer"): ("SpatialDropout", _spatial_dropout),
}
"""By module and class the type, and what gives it the module's parameters: Faster R-CNN's and ENet's."""
