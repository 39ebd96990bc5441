"""The hooks that this plugin implements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from demitasse import Candidate, Event, LayerType, ModelReader, Request, Weights, hookimpl
from demitasse.operations import Operation


@hookimpl
def operations() -> Iterable[Operation]:
    """Return operations that Caffe's layers need beyond the core's vocabulary."""
    from demitasse_caffe.operations import OPERATIONS

    return OPERATIONS


@hookimpl
def kernels(request: Request) -> Iterable[Candidate]:
    """Return a kernel for the operation that writes blobs to a file; there are none for arithmetic."""
    from demitasse_caffe.kernels import candidates

    return candidates(request)


@hookimpl
def layer_types() -> Iterable[LayerType]:
    """Return Caffe's layer types."""
    from demitasse_caffe.layers import LAYER_TYPES

    return LAYER_TYPES


@hookimpl
def model_reader(path: Path, layer_types: Mapping[str, LayerType]) -> ModelReader | None:
    """Return a reader for a net, solver, weights or solver state file."""
    from demitasse_caffe.reader import open_model

    return open_model(Path(path), layer_types)


@hookimpl
def model_writer(path: Path, weights: Weights) -> None:
    """Write parameters as a caffemodel, or as a solver state with its caffemodel beside it;
    the suffix decides."""
    from demitasse_caffe.hdf5_weights import write_hdf5_weights
    from demitasse_caffe.solverstate import write_solverstate
    from demitasse_caffe.weights import write_caffemodel

    path = Path(path)
    if path.name.endswith((".solverstate", ".solverstate.h5")):
        write_solverstate(path, weights)
    else:
        (write_hdf5_weights if path.suffix == ".h5" else write_caffemodel)(path, weights)


@hookimpl
def programs() -> Mapping[str, Callable[..., Any]]:
    """Return the programs ``classify`` (images), ``compute_image_mean``, ``convert_model`` (a net or
    solver from one format to another) and ``caffe_log`` (the log of Caffe's ``test`` and ``time``)."""
    from demitasse_caffe.classifying import classify
    from demitasse_caffe.command_log import caffe_log
    from demitasse_caffe.conversion import convert_model
    from demitasse_caffe.mean import compute_image_mean

    return {
        "caffe_log": caffe_log,
        "classify": classify,
        "compute_image_mean": compute_image_mean,
        "convert_model": convert_model,
    }


@hookimpl
def observe(options: Mapping[str, Any]) -> Callable[[Event], None] | None:
    """Return a log in Caffe's format if the option ``log`` asks for one."""
    if "log" not in options:
        return None
    from demitasse_caffe.training_log import listener

    return listener(options["log"])


@hookimpl
def commands() -> Mapping[str, Callable[..., Any]]:
    """Return the commands ``classify``, ``compute_image_mean`` and ``draw``."""
    from demitasse_caffe import classify_command, draw_command, mean_command

    return {
        "classify": classify_command.command,
        "compute_image_mean": mean_command.command,
        "draw": draw_command.command,
    }
