"""Plan and run every net in a folder of prototxts on random data.

    python tools/sweep_prototxts.py FOLDER [--only TEXT] [--batch 2] [--json sweep.json]

Each file is read, and a solver's fields are checked. A net is planned and run forward in both phases,
and trained for one iteration at rate 0 if it has a loss. Samples are random. Their shape is what a
layer's transform_param asks for, else the first of some common shapes that the net accepts; labels are
0 or 1. Batches are made small. If a layer resizes images to several sizes, only the first is used,
because there is one here; the line says so. Layers of type Python without bottoms become DummyData,
because their code is not there. The output has one line per net and phase: ``ran``, ``trained``,
``unknown type``, or the error.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import demitasse
from demitasse import DemitasseError, Layer, ModelError, NetDefinition, Runtime, Solver

Shape = tuple[int, ...]

SAMPLED = {
    "AnnotatedData": "data_param",
    "Data": "data_param",
    "DenseImageData": "dense_image_data_param",
    "ImageData": "image_data_param",
    "ImageLabelmapData": "image_data_param",
    "ImageSegData": "image_data_param",
    "VideoData": "video_data_param",
    "WindowData": "window_data_param",
    "HDF5Data": "hdf5_data_param",
    "MemoryData": "memory_data_param",
}
"""Layer types that read samples, and their parameters."""

KINDS = (
    ("unknown layer type", "unknown type"),
    ("unknown bottom blob", "incomplete"),  # most often the file is not for this phase
    ("is left out by its", "incomplete"),
    ("", "failed"),
)
"""Categories of errors, by a part of their text."""

OBJECT = [[0, 1, 0, 0.2, 0.2, 0.7, 0.7, 0]]
"""The objects in an image of AnnotatedData."""

REGION = [0, 1, 2, 40, 50]
"""The input of a net that takes regions."""

LABELS = ("label", "labels", "sim", "clip", "cont", "target")
COMMON: tuple[Shape, ...] = (
    *((3, 32, 32), (1, 28, 28), (2, 28, 28), (3, 64, 64), (3, 224, 224), (3, 227, 227)),
    *((4,), (16,), (1, 64, 64), (3, 300, 300)),
)
"""Shapes of samples to try if nothing in the file gives one."""


@dataclasses.dataclass
class Outcome:
    """The outcome for a net in a phase (or for a file), and the seconds for reading and running it."""

    file: str
    phase: str
    outcome: str
    detail: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.outcome:13} {self.phase:6} {self.seconds:6.1f} s  {self.file}  {self.detail}"


def sweep(runtime: Runtime, path: Path, batch: int = 2, solvers: bool = False) -> Iterator[Outcome]:
    """Yield the outcomes of a file; with ``solvers``, also train and run a solver's nets with the
    solver."""
    try:
        reader: Any = runtime.read(path)
        nets = _solver_or_nets(reader, stages(path))
    except DemitasseError as error:
        yield Outcome(str(path), "", "refused", str(error))
        return
    if isinstance(nets, Solver):
        yield Outcome(str(path), "", "solver")
        if solvers:
            for net in (nets.train, *nets.tests):
                yield _outcome(runtime, path, net.phase, net, batch, nets)
        return
    made = {phase: net for phase, net in nets.items() if isinstance(net, NetDefinition)}
    alike = {"train", "test"} <= made.keys() and made["train"].layers == made["test"].layers
    for phase, net in nets.items():
        if isinstance(net, DemitasseError):
            yield Outcome(str(path), phase, "refused", str(net))
            continue
        if alike and phase == "train" and not has_loss(net):
            continue
        yield _outcome(runtime, path, phase, net, batch)


def _outcome(
    runtime: Runtime,
    path: Path,
    phase: str,
    net: NetDefinition,
    batch: int,
    solver: Solver | None = None,
) -> Outcome:
    start = time.perf_counter()
    try:
        outcome, detail = run(runtime, net, batch, solver or idle(net)), _of_sizes(net)
    except DemitasseError as error:
        outcome, detail = next(name for text, name in KINDS if text in str(error)), str(error)
    except Exception as error:  # noqa: BLE001  a bug, which the sweep is meant to find
        outcome, detail = "crashed", f"{type(error).__name__}: {error}"
    return Outcome(str(path), phase, outcome, detail, time.perf_counter() - start)


def _of_sizes(net: NetDefinition) -> str:
    """Return a note for a net that asks for images of several sizes."""
    counts = [len(_resizing(layer.parameters)) for layer in net.layers]
    most = max(counts, default=0)
    return f"with the first of {most} resize_param" if most > 1 else ""


def _resizing(message: Any) -> Any:
    """Return the sizes to which a layer resizes images."""
    known = hasattr(message, "DESCRIPTOR") and message.HasField("transform_param")
    return message.transform_param.resize_param if known else ()


def stages(path: Path) -> list[str]:
    """Return the stages that a net's rules mention."""
    text = path.read_text(encoding="latin-1")
    return sorted(set(re.findall(r"""\bstage\s*:\s*["']([^"']+)""", text)))


def _solver_or_nets(
    reader: Any, staged: list[str]
) -> Solver | dict[str, NetDefinition | DemitasseError]:
    """Return the solver in a file, or the net of each phase, and of the test phase in each stage, or the
    error of reading it."""
    try:
        solver: Solver = reader.solver({})
    except ModelError as error:
        if "is a net; a solver is needed" not in str(error):
            raise
        nets = {phase: _net(reader, phase) for phase in ("train", "test")}
        return nets | {f"test {stage}": _net(reader, "test", {"state.stage": stage}) for stage in staged}
    return solver


def _net(
    reader: Any, phase: str, overrides: Mapping[str, str] | None = None
) -> NetDefinition | DemitasseError:
    try:
        net: NetDefinition = reader.net(phase, overrides)
    except DemitasseError as error:
        return error
    return net


def idle(net: NetDefinition) -> Solver:
    """Return a solver that changes nothing."""
    return Solver(
        train=net,
        tests=(),
        update="momentum_update",
        update_attributes={},
        rate=lambda iteration: 0.0,
        max_iterations=1,
    )


def has_loss(net: NetDefinition) -> bool:
    """Whether a layer's top is part of an objective."""
    named = (layer for layer in net.layers if "Loss" in layer.type or layer.type == "Yolov3")
    return any(named) or any(any(layer.loss_weights) for layer in net.layers)


def run(runtime: Runtime, net: NetDefinition, batch: int, solver: Solver) -> str:
    """Return ``ran`` or ``trained``; raises the last error of all sample shapes that were tried."""
    small = dataclasses.replace(net, layers=tuple(reduced(layer, batch) for layer in net.layers))
    shape = shape_of(net)
    last: DemitasseError | None = None
    for each in [shape] if shape else COMMON:
        data = samples(net, each, batch * 4)
        try:
            return _run(runtime, small, data or None, solver)
        except DemitasseError as error:
            last = last or error
            if "unknown layer type" in str(error) or not data:
                break
    whole = tuple(reduced(layer, None) for layer in net.layers)
    if whole != small.layers:  # a Reshape may depend on the file's batch size
        try:
            return _run(runtime, dataclasses.replace(net, layers=whole), None, solver)
        except DemitasseError:
            pass  # the error with the small batch will do
    assert last is not None
    raise last


def _run(
    runtime: Runtime, net: NetDefinition, data: Mapping[str, np.ndarray] | None, solver: Solver
) -> str:
    given = {net.phase: data} if data else None
    if net.phase == "train" and has_loss(net) and not any(x.type == "Input" for x in net.layers):
        solver = dataclasses.replace(solver, train=net, tests=(), weights=())
        trainer: Any = runtime.trainer(solver, data=given)
        try:
            trainer.step(1)
        finally:
            trainer.close()
        return "trained"
    made: Any = runtime.net(net, phase=net.phase, data=given)
    try:
        random = np.random.default_rng(1)
        inputs = made.graph.inputs
        given = {n: random.random(t.shape, np.float32) for n, t in inputs.items()}
        for rois in (array for name, array in given.items() if name == "rois"):
            rois.reshape(len(rois), -1)[...] = REGION
        made.forward(**given)
    finally:
        made.close()
    return "ran"


def reduced(layer: Layer, batch: int | None) -> Layer:
    """Return a layer that needs no file, with a small batch (None: the file's batch)."""
    if not hasattr(layer.parameters, "DESCRIPTOR"):
        return layer
    message = type(layer.parameters)()
    message.CopyFrom(layer.parameters)
    if message.HasField("transform_param"):
        message.transform_param.ClearField("mean_file")
        del message.transform_param.resize_param[1:]
    if layer.type in SAMPLED and batch:
        getattr(message, SAMPLED[layer.type]).batch_size = batch
    elif layer.type == "Input" and batch:
        for shape in message.input_param.shape:
            if len(shape.dim) == 4 and shape.dim[0] > batch:
                shape.dim[0] = batch
    elif layer.type == "Python" and not layer.bottoms:
        message.type = "DummyData"
        for top in layer.tops:
            image = (1, 1 if is_label(top) else 3, 96, 96)
            message.dummy_data_param.shape.add().dim.extend(image)
        layer = dataclasses.replace(layer, type="DummyData")
    return dataclasses.replace(layer, parameters=message)


def is_label(name: str) -> bool:
    """Whether a blob or field of this name contains classes or markers."""
    return name in LABELS or name.startswith("label") or name in ("sem", "geo")


def shape_of(net: NetDefinition) -> Shape | None:
    """Return the image shape that a transform_param or memory_data_param gives, if there is one."""
    for layer in net.layers:
        if layer.type not in SAMPLED:
            continue
        message = layer.parameters
        transform, memory, image = (
            message.transform_param,
            message.memory_data_param,
            message.image_data_param,
        )
        if layer.type == "VideoData":
            return shape_of_clips(message)
        channels = len(transform.mean_value) if len(transform.mean_value) > 1 else 3
        if layer.type == "MemoryData":
            return memory.channels, memory.height, memory.width
        if transform.crop_size:
            return channels, transform.crop_size, transform.crop_size
        if layer.type == "AnnotatedData" and transform.resize_param:
            return channels, transform.resize_param[0].height, transform.resize_param[0].width
        if layer.type == "ImageData" and image.new_height:
            return channels, image.new_height, image.new_width
        if layer.type == "DenseImageData":
            dense = message.dense_image_data_param
            return (
                channels,
                dense.crop_height or dense.new_height or 64,
                dense.crop_width or dense.new_width or 64,
            )
    return None


def shape_of_clips(message: Any) -> Shape:
    """Return the shape of a sample of a layer VideoData."""
    video, crop = message.video_data_param, message.transform_param.crop_size
    plane = (crop, crop) if crop else (video.new_height or 64, video.new_width or 64)
    if any(video.HasField(name) for name in ("num_segments", "modality", "name_pattern")):
        channels = 2 if video.modality == video.FLOW else 3
        return (channels * video.num_segments * video.new_length, *plane)
    return (3, video.new_length, *plane)


def samples(net: NetDefinition, shape: Shape, count: int) -> dict[str, np.ndarray]:
    """Return arrays for the fields that the net's data layers read."""
    random = np.random.default_rng(1)
    fields: set[str] = set()
    labels: Shape = ()
    for layer in net.layers:
        if layer.type in SAMPLED:
            fields.update(layer.tops if layer.type == "HDF5Data" else ("data", "label"))
        if layer.type == "AnnotatedData":
            return {
                "data": random.random((count, *shape), np.float32),
                "label": np.tile(np.float32(OBJECT), (count, 1, 1, 1)),
            }
        if layer.type in ("DenseImageData", "ImageLabelmapData", "ImageSegData"):
            divided = layer.parameters.dense_image_data_param.label_divide_factor
            labels = (1, *(extent // divided for extent in shape[1:]))
    return {
        name: random.integers(0, 2, (count, *labels)).astype(np.float32)
        if is_label(name)
        else random.random((count, *shape), np.float32)
        for name in fields
    }


def files(paths: Iterable[Path], only: str) -> list[Path]:
    """Return the prototxts in folders and among files, in order."""
    found = [
        file for path in paths for file in ([path] if path.is_file() else path.rglob("*.prototxt*"))
    ]
    return sorted(file for file in found if file.is_file() and only in str(file))


def main() -> None:
    """Sweep, printing outcomes as they come, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--only", default="", help="files whose path has this text")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--solvers", action="store_true", help="run solvers' nets by them as well")
    parser.add_argument("--plugins", default="-tuning", help="as demitasse train has it")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    outcomes: list[Outcome] = []
    for path in files(arguments.paths, arguments.only):
        with demitasse.compose(plugins=arguments.plugins.split(",")) as runtime:
            for outcome in sweep(runtime, path, arguments.batch, arguments.solvers):
                outcomes.append(outcome)
                print(outcome, flush=True)
    print(dict(Counter(each.outcome for each in outcomes)))
    if arguments.json is not None:
        rows = [dataclasses.asdict(each) for each in outcomes]
        arguments.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
