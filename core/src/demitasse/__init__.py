"""Demitasse: a microkernel that composes plugins into a runtime and trains convolutional nets. To import
it is cheap: each public name is imported from its module when it is first used."""

import importlib

__version__ = "0.1.0"

_HOMES = {
    "arena": "Allocator Memory",
    "composition": "Choice Composition Finding Manifest discover",
    "data": "DataSource DataSpec Field Stream",
    "errors": "CompositionError DataError DemitasseError DescriptionError Location ModelError "
    "NumericsError PlanError PluginError ShapeError SnapshotError WorkerError nearest unknown",
    "hookspecs": "hookimpl",
    "machine": "Level Link Machine MemorySpace Quantity SyncSpec fingerprint load_machine",
    "model": "GraphBuilder Layer LayerType ModelReader NetDefinition Solver Weights",
    "operations.graph": "Feed Filler Graph Node Parameter Tensor by_operand shapes_by_operand",
    "operations.kernel": "PLAIN Bind Candidate Layout Place Request TensorSpec Work",
    "operations.random_numbers": "RandomStream crop_and_mirror keep_mask permutation philox4x32",
    "operations.selection": "Kernels choose",
    "plan": "Buffer Entry Plan Slot make_plan",
    "runtime": "Event PRECISIONS Runtime compose",
    "schedules": "Move Schedule check run_threads",
    "step": "Phases Step",
    "synchronisation": "Bucket FlatMemory GradientSync Group Span Team chain",
    "workers": "WorkerPlace Workers arrange",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604  the names are strings


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'demitasse' has no attribute {name!r}")
    module = importlib.import_module(f"demitasse.{_HOME[name]}")
    return globals().setdefault(name, getattr(module, name))


def __dir__() -> list[str]:
    return sorted(__all__)
