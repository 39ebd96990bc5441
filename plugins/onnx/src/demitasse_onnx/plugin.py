"""The hooks that this plugin implements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from demitasse import LayerType, ModelError, ModelReader, Runtime, Solver, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """Return operations that nets of other frameworks need beyond the core's vocabulary."""
    from demitasse_onnx.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Return ``onnx``, the layer type of a node of an ONNX model."""
    from demitasse_onnx.operators import OnnxNode

    return (OnnxNode(),)


@hookimpl
def model_reader(path: Path, layer_types: Mapping[str, LayerType]) -> ModelReader | None:
    """Return a reader of an ONNX model, which is recognised only by its suffix. Raise ModelError for a
    file in PyTorch's own format, with instructions for exporting it."""
    from demitasse_onnx.torch_files import refused

    if not str(path).endswith(".onnx"):
        if (instead := refused(Path(path))) is not None:
            raise ModelError(instead)
        return None
    from demitasse_onnx.reader import OnnxReader

    return OnnxReader(Path(path))


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """Return the programs ``export_onnx`` (a net and its weights as an ONNX model), ``convert_to_onnx``
    (the same for the command line's convert) and ``onnx_solver`` (how a model is trained)."""
    return {"convert_to_onnx": _convert, "export_onnx": _export, "onnx_solver": _solver}


# A runtime asks for programs when it is composed; onnx and protobuf are imported only when one runs.


def _export(runtime: Runtime, *arguments: Any, **options: Any) -> Path:
    from demitasse_onnx.export import export_onnx

    return export_onnx(runtime, *arguments, **options)


def _convert(runtime: Runtime, *arguments: Any, **options: Any) -> dict[str, Any]:
    from demitasse_onnx.export import convert_to_onnx

    return convert_to_onnx(runtime, *arguments, **options)


def _solver(runtime: Runtime, *arguments: Any, **options: Any) -> Solver:
    from demitasse_onnx.training import onnx_solver

    return onnx_solver(runtime, *arguments, **options)
