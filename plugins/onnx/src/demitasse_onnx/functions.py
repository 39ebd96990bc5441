"""Nodes that are defined by other nodes: a model's own functions, and operators that ONNX itself defines
in terms of other operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import inliner

from demitasse import ModelError
from demitasse_onnx.nodes import READ


def without_functions(model: onnx.ModelProto, opset: int, path: Path) -> onnx.ModelProto:
    """Return the model with its own functions inlined, and with unsupported operators replaced by the
    operators that define them. Raise ModelError."""
    if model.functions:
        try:
            model = inliner.inline_local_functions(model)
        except _REFUSED as error:
            told = " ".join(str(error).split())
            raise ModelError(f"{path}: its own functions cannot be inlined: {told}") from error
    others = {node.op_type for node in model.graph.node if node.domain in ("", "ai.onnx")} - READ
    # Releases of onnx before 1.20 can only inline a model's own functions.
    selected = getattr(inliner, "inline_selected_functions", None)
    if selected is None or not any(_is_defined_by_others(name, opset) for name in others):
        return model
    try:
        made: onnx.ModelProto = selected(
            _typed(model), [("", name) for name in READ], exclude=True, inline_schema_functions=True
        )
    except _REFUSED:  # the definition of such an operator may depend on types that are unknown
        return model
    return made


_REFUSED = (
    *(RuntimeError, ValueError, TypeError, onnx.onnx_cpp2py_export.checker.ValidationError),
    onnx.shape_inference.InferenceError,
)


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with the types of its nodes' results and of its constants."""
    typed = onnx.shape_inference.infer_shapes(model)
    told = {value.name for value in (*typed.graph.input, *typed.graph.value_info)}
    typed.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(each.name, each.data_type, each.dims)
        for each in typed.graph.initializer
        if each.name not in told
    )
    return typed


def _is_defined_by_others(operator: str, opset: int) -> bool:
    try:
        schema: Any = onnx.defs.get_schema(operator, opset, "")
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)
