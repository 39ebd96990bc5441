"""A net as scripts see it."""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from demitasse import DemitasseError, ModelError, NetDefinition, Runtime, ShapeError, Weights, unknown
from demitasse_caffe.pycaffe.batches import batches
from demitasse_caffe.pycaffe.blob import BlobVec, NetBlob
from demitasse_caffe.pycaffe.callbacks import Callbacks
from demitasse_caffe.pycaffe.definition import has_loss, read_definition
from demitasse_caffe.pycaffe.errors import also, as_raised
from demitasse_caffe.pycaffe.layer_view import LayerView
from demitasse_caffe.pycaffe.runtime import (
    PHASES,
    current,
    default_phase,
    seed,
    set_device,
    set_mode_cpu,
    set_mode_gpu,
    tell,
)
from demitasse_caffe.pycaffe.turns import in_turn
from demitasse_caffe.pycaffe.values import Values
from demitasse_caffe.pycaffe.weights import copy_parameters, write_weights


class Net(Callbacks):
    """A net read from a file: ``Net(file, phase)``, ``Net(file, weights, phase)`` or ``Net(file, phase,
    level=, stages=, weights=)``. Blobs and parameters are live arrays. Calls from several threads run
    one after the other.

    Raises ModelError with file, line and layer if the file is not a valid net.
    """

    def __init__(
        self,
        network_file: str | Path,
        *arguments: Any,
        phase: int | None = None,
        level: int = 0,
        stages: Sequence[str] | None = None,
        weights: str | Path | None = None,
    ) -> None:
        rest = list(arguments)
        if rest and isinstance(rest[0], str | Path):
            weights = rest.pop(0)
        if len(rest) > 4:
            raise TypeError(f"Net takes a file and up to 4 arguments; {len(rest)} were given")
        given: list[Any] = [*rest, *(phase, level, stages, weights)[len(rest) :]]
        phase, level, stages, weights = given
        if network_file is None or (len(rest) == 2 and rest[0] is None):
            raise ModelError(f"Net({network_file}, {', '.join(map(str, rest))}): None names no file")
        if phase is None:
            phase = default_phase(weights is not None)
        if phase not in PHASES:
            raise ModelError(f"a net is made for caffe.TRAIN (0) or caffe.TEST (1); given {phase!r}")
        runtime = current()
        definition, forced = read_definition(runtime, network_file, phase, level, stages or ())
        backward = "every blob" if forced else "objective" if has_loss(definition, runtime) else None
        options: dict[str, Any] = {"phase": definition.phase, "retain": "all", "backward": backward}
        try:
            engine = runtime.net(definition, seed=seed(), **options)
        except DemitasseError as error:
            as_raised(error)
            raise
        self._begin(engine, runtime)
        if weights is not None:
            self.copy_from(weights)

    @classmethod
    def _of(cls, engine: Any, runtime: Runtime) -> Net:
        """Return a Net around an engine that is already planned."""
        net = cls.__new__(cls)
        net._begin(engine, runtime)
        return net

    def _begin(self, engine: Any, runtime: Runtime) -> None:
        Callbacks.__init__(self)
        self._engine, self._runtime = engine, runtime
        self._coming: Any = {}  # shapes of the next samples
        self._begun = False  # whether a pass began on samples that are already taken
        weakref.finalize(self, engine.close)  # stops reading samples ahead
        self._definition: NetDefinition = engine.definition
        tell(self._definition.notes)
        self._samples: list[tuple[dict[str, np.ndarray], int]] = []
        layers = self._definition.layers
        self._layer_names = [layer.name for layer in layers]
        self._values = values = Values(engine, len(layers))
        self.turn = values.turn
        self._blob_names = list(engine.graph.blobs)
        self.bottom_names = OrderedDict((layer.name, list(layer.bottoms)) for layer in layers)
        self.top_names = OrderedDict((layer.name, list(layer.tops)) for layer in layers)
        self.inputs = [top for layer in layers if layer.type == "Input" for top in layer.tops]
        self.outputs = sorted(engine.graph.outputs)
        self.blobs = OrderedDict((name, NetBlob(values, name)) for name in self._blob_names)
        counts = {name: len(arrays) for name, arrays in engine.walk.params.items()}
        self.params = OrderedDict(
            (name, BlobVec(values.parameter(name, i) for i in range(counts[name])))
            for name in dict.fromkeys(self._layer_names)
            if name in counts
        )
        objects = {name: part.object for name, part in self._users_parts()}
        views = (LayerView(x.name, x.type, self.params.get(x.name, ())) for x in layers)
        self.layers = [objects.get(view.name, view) for view in views]
        self.layer_dict = OrderedDict(zip(self._layer_names, self.layers, strict=True))

    # What a script runs.

    @in_turn
    def forward(
        self,
        blobs: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **inputs: Any,
    ) -> dict[str, np.ndarray]:
        """Run layers ``start`` to ``end`` inclusive (by default all) on ``inputs``, given by name.
        Return the live arrays of the outputs (or of the tops of ``end``) and of ``blobs``."""
        if inputs:
            if set(inputs) != set(self.inputs):
                raise ModelError(
                    f"forward was given {', '.join(sorted(inputs))}; the net's inputs are "
                    f"{', '.join(self.inputs) or 'none'}: give all of them, or none"
                )
            for name, value in inputs.items():
                self._assign(name, self.blobs[name].data, value)
        first = 0 if start is None else self._number(start)
        last = len(self._layer_names) - 1 if end is None else self._number(end)
        self.prepare(first, last)
        self._run(range(first, last + 1), "forward")
        wanted = self.outputs if end is None else self.top_names[end]
        return {name: self.blobs[self._blob(name)].data for name in [*wanted, *(blobs or ())]}

    @in_turn
    def backward(
        self,
        diffs: Sequence[str] | None = None,
        start: str | None = None,
        end: str | None = None,
        **gradients: Any,
    ) -> dict[str, np.ndarray]:
        """Run layers ``start`` down to ``end`` inclusive (by default all) on ``gradients`` of the
        outputs, given by name. Return the live gradients of the inputs (or of the bottoms of ``end``)
        and of ``diffs``. Gradients of parameters are added to those already there, as in Caffe."""
        first = len(self._layer_names) - 1 if start is None else self._number(start)
        last = 0 if end is None else self._number(end)
        self._differentiate(first)
        if gradients:
            if set(gradients) != set(self.outputs):
                raise ModelError(
                    f"backward was given {', '.join(sorted(gradients))}; the net's outputs are "
                    f"{', '.join(self.outputs)}: give all of them, or none"
                )
            for name, value in gradients.items():
                self._assign(name, self.blobs[name].diff, value)
        self._run(range(first, last - 1, -1), "backward")
        wanted = self.inputs if end is None else self.bottom_names[end]
        return {name: self.blobs[self._blob(name)].diff for name in [*wanted, *(diffs or ())]}

    @in_turn
    def forward_all(self, blobs: Sequence[str] | None = None, **inputs: Any) -> dict[str, np.ndarray]:
        """Run ``forward`` over any number of samples, one batch at a time. An output with a single value
        for the whole batch, such as a loss, has one value per batch in the result."""
        if not inputs:
            raise ModelError(f"no samples are given; the net's inputs are {', '.join(self.inputs)}")
        results: dict[str, list[np.ndarray]] = {}
        for batch in self._batches(inputs):
            for name, value in self.forward(blobs, None, None, **batch).items():
                results.setdefault(name, []).extend(np.atleast_1d(value).copy())
        count = len(next(iter(inputs.values())))
        return {name: np.asarray(values)[:count] for name, values in results.items()}

    @in_turn
    def forward_backward_all(
        self, blobs: Sequence[str] | None = None, diffs: Sequence[str] | None = None, **arrays: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Run ``forward`` and ``backward`` over any number of samples. ``arrays`` are inputs, and
        gradients of outputs, by name."""
        values: dict[str, list[np.ndarray]] = {}
        gradients: dict[str, list[np.ndarray]] = {}
        ahead = self._batches({k: v for k, v in arrays.items() if k in self.inputs})
        back = self._batches({k: v for k, v in arrays.items() if k in self.outputs})
        for batch in ahead:
            for name, value in self.forward(blobs, None, None, **batch).items():
                values.setdefault(name, []).extend(np.atleast_1d(value).copy())
            for name, value in self.backward(diffs, None, None, **next(back, {})).items():
                gradients.setdefault(name, []).extend(value.copy())
        count = len(next(iter(arrays.values())))
        return (
            {name: np.asarray(each)[:count] for name, each in values.items()},
            {name: np.asarray(each)[:count] for name, each in gradients.items()},
        )

    def prepare(self, first: int = 0, last: int | None = None) -> None:
        """Prepare a forward pass from layer ``first`` to ``last``: settle the shapes and copy the
        samples of MemoryData layers."""
        self._check_parameters()
        self._values.settle(last)
        self._next_samples(first)
        whole = last in (None, len(self._layer_names) - 1)
        self._coming = self._engine.coming(layers=whole) if first == 0 else {}
        self._begun = False
        if first == 0 and not whole:
            self._engine.follow(self._coming)
        elif first == 0 and self.called("forward"):  # plan before callbacks see the layers
            self._begun = self._engine.plan_through(self._coming, partial(self._walk_to, None))
        if first > 0 or not whole:
            self._follow_layers(first, last)

    def following(self, run: Callable[..., None]) -> None:
        """Run a forward pass from the first layer on. If the user's code of a layer with bottoms gives
        its tops new shapes, as layers that propose regions do, the net is planned again. The pass then
        restarts on what the users' layers have produced; ``run`` is told by its argument ``again``
        whether it runs on the same samples again. If there are callbacks, the layers run one by one."""
        if self.called("forward"):
            try:
                self.around_each("forward", self._all(), partial(run, self._begun))
            finally:
                self._engine.end_through()
        else:
            self._engine.run_through(self._coming, run)

    def returning(self, run: Callable[..., None]) -> None:
        """Run a backward pass from the last layer on; if there are callbacks, layer by layer."""
        if self.called("backward"):
            self.around_each("backward", reversed(self._all()), run)
        else:
            run()

    def reshape(self) -> None:
        """Give all blobs the shapes that follow from those of the inputs. Raise ShapeError, and leave
        the net as it was, if the net cannot take them."""
        self._values.settle()

    @in_turn
    def set_input_arrays(self, data: np.ndarray, labels: np.ndarray, index: int = 0) -> None:
        """Give the net's MemoryData layer number ``index`` its samples. They are read a batch at a time,
        starting over at the end. Raise ShapeError if the samples are not whole batches or do not have
        the blobs' shapes."""
        layers = [layer for layer in self._definition.layers if layer.type == "MemoryData"]
        if index >= len(layers):
            where = self._definition.location
            told = f"set_input_arrays is for a net with a MemoryData layer; it has {len(layers)}"
            raise also(ModelError(f"{where}: {told}"), RuntimeError)
        arrays = dict(zip(layers[index].tops, (data, labels), strict=False))
        for name, array in arrays.items():
            batch, *sample = self.blobs[name].shape
            if [n for n in np.shape(array)[1:] if n > 1] != [n for n in sample if n > 1]:
                given = "x".join(map(str, np.shape(array)[1:]))
                told = (
                    f"set_input_arrays: samples of {given or 'one number'} were given to blob {name!r}, "
                    f"whose samples are {'x'.join(map(str, sample)) or 'one number'}"
                )
                raise also(ShapeError(told), RuntimeError)
            if not len(array) or len(array) % batch or len(data) != len(labels):
                told = f"{len(data)} samples and {len(labels)} labels are not whole batches of {batch}"
                raise also(ShapeError(told), RuntimeError)
        self._samples = [(arrays, 0)]

    # Parameters in files.

    @in_turn
    def save(self, path: str | Path) -> None:
        """Write the layers with their parameters to a caffemodel."""
        write_weights(Path(path), self._weights())

    @in_turn
    def save_hdf5(self, path: str | Path) -> None:
        """Write all parameters to an HDF5 file."""
        write_weights(Path(path), self._weights(), hdf5=True)

    @in_turn
    def copy_from(self, path: str | Path) -> None:
        """Copy parameters from a file, by the names of layers. Layers that only the file or only the net
        has are skipped. Raise ShapeError with the layer and the shapes if they differ."""
        self._check_parameters()
        copy_parameters(Path(path), self._engine.walk.params)

    def load_hdf5(self, path: str | Path) -> None:
        """Copy parameters from an HDF5 file, by the names of layers."""
        self.copy_from(path)

    @in_turn
    def share_with(self, other: Net) -> None:
        """Share all parameters with another net, which must have each of them. Arrays of this net's
        blobs and parameters that were taken before no longer belong to it."""
        mine, theirs = self._engine.walk, other._engine.walk
        if mine.flat is theirs.flat:
            return
        self._engine.adopt(theirs.step.plan.slots, theirs.flat)
        self._values.unused = {}

    @in_turn
    def clear_param_diffs(self) -> None:
        """Set the gradients of all parameters to zero."""
        self._values.differentiate()
        self._engine.walk.clear()

    @property
    def blob_loss_weights(self) -> OrderedDict[str, float]:
        """The weight of each blob in the loss."""
        weights = dict(self._engine.graph.objective)
        blobs = self._engine.graph.blobs
        tensors = ((name, blobs.get(name)) for name in self._blob_names)
        return OrderedDict((name, weights.get(tensor, 0.0)) for name, tensor in tensors)

    # Access by number, as in Caffe's compiled module.

    @property
    def _blobs(self) -> BlobVec:
        return BlobVec(self.blobs.values())

    @property
    def _inputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.inputs]

    @property
    def _outputs(self) -> list[int]:
        return [self._blob_names.index(name) for name in self.outputs]

    def _bottom_ids(self, number: int) -> list[int]:
        return [self._blob_names.index(n) for n in self.bottom_names[self._layer_names[number]]]

    def _top_ids(self, number: int) -> list[int]:
        return [self._blob_names.index(n) for n in self.top_names[self._layer_names[number]]]

    @in_turn
    def _forward(self, first: int, last: int) -> float:
        """Run layers ``first`` to ``last`` inclusive, by number; return their
        contribution to the loss."""
        self.prepare(first, last)
        self._run(range(first, last + 1), "forward")
        tops = (self.top_names[name] for name in self._layer_names[first : last + 1])
        made = dict.fromkeys(itertools.chain.from_iterable(tops))  # in a fixed order, for the sum
        weights = self.blob_loss_weights
        return sum(weights[name] * float(self.blobs[name].data.sum()) for name in made if weights[name])

    @in_turn
    def _backward(self, first: int, last: int) -> None:
        """Run layers from ``first`` down to ``last`` inclusive, by number."""
        self._differentiate(first)
        self._run(range(first, last - 1, -1), "backward")

    # Methods of nets in 2014, when scripts set these on the net instead of on the module.

    set_mode_cpu = staticmethod(set_mode_cpu)
    set_mode_gpu = staticmethod(set_mode_gpu)
    set_device = staticmethod(set_device)

    def set_phase_test(self) -> None:
        """Do nothing if the net is made for TEST, as nets without a phase are; raise
        ModelError otherwise."""
        self._has_phase("test")

    def set_phase_train(self) -> None:
        """Do nothing if the net is made for TRAIN; raise ModelError otherwise."""
        self._has_phase("train")

    # The implementation.

    def _has_phase(self, phase: str) -> None:
        if (mine := self._definition.phase) != phase:
            raise ModelError(
                f"{self._definition.location}: the net is made for caffe.{mine.upper()}; give "
                f"caffe.{phase.upper()} when you make it"
            )

    def _differentiate(self, last: int) -> None:
        self._check_parameters()
        self._values.settle(last)
        self._values.differentiate()

    def _check_parameters(self) -> None:
        """Raise ShapeError if a parameter was given a shape that is not its layer's."""
        for blob in (blob for blobs in self.params.values() for blob in blobs):
            if blob.reshaped:
                raise ShapeError(
                    f"{blob.where} was reshaped to {blob.shape}: this net can be saved, and a net whose "
                    f"file has that shape can be made of it; to run it, reshape it back"
                )

    def _users_parts(self) -> Iterator[tuple[str, Any]]:
        """Yield the parts of the graph that run a user's code, each with the name of its layer."""
        for node in self._engine.graph.nodes:
            for part in node.attributes.values():
                if node.phase == "forward" and hasattr(part, "reshaped"):
                    yield node.layer, part

    def _follow_layers(self, first: int, last: int | None) -> None:
        """Plan again if the user's code of a layer that is about to run has given
        its tops new shapes."""
        running = set(self._layer_names[first : None if last is None else last + 1])
        changed = [part.reshaped() for layer, part in self._users_parts() if layer in running]
        if any(changed):
            self._engine.plan_again()

    @in_turn
    def _scores(self, iterations: int) -> dict[str, Any]:
        """Return the scores of the outputs over forward passes that start at the first sample."""
        self._engine.rewind(0)
        self._samples = [(arrays, 0) for arrays, _ in self._samples]
        tally = self._engine.empty_tally(iterations)
        for number in range(iterations):
            self.forward()
            tally.add(number, self._engine.outputs(planned=True))
        return tally.scores()  # type: ignore[no-any-return]

    def _next_samples(self, first: int) -> None:
        for place, (arrays, start) in enumerate(self._samples if first == 0 else ()):
            for name, array in arrays.items():
                mine = self.blobs[name].data
                mine[...] = array[start : start + len(mine)].reshape(mine.shape)
                end = start + len(mine)
            self._samples[place] = arrays, end % len(array)

    def _run(self, numbers: range, way: str) -> None:
        if len(numbers) == 0:
            raise ModelError(f"{way} was given a start and an end with no layer between")
        run = getattr(self._engine.walk, way)
        if self.called(way):
            if way == "forward":
                run = partial(run, again=self._begun)
            try:
                self.around_each(way, numbers, run)
            finally:
                self._engine.end_through()
        elif way == "forward" and numbers[0] == 0:
            self.following(lambda again: self._walk_to(numbers[-1], again))
        else:
            run(numbers[0], numbers[-1])

    def _all(self) -> range:
        return range(len(self._layer_names))

    def _walk_to(self, last: int | None, again: bool) -> None:
        """Run forward from the first layer as far as the net is planned, at most to ``last``."""
        walk = self._engine.walk
        end = len(walk.layers) - 1
        walk.forward(0, end if last is None else min(last, end), again=again)

    def _assign(self, name: str, mine: np.ndarray, value: Any) -> None:
        array = np.asarray(value)
        if array.shape[:1] != mine.shape[:1]:
            raise ShapeError(
                f"blob {name!r}: {array.shape[:1] or 'no'} samples were given to a batch of "
                f"{mine.shape[:1]}; reshape the blob first, or use forward_all"
            )
        mine[...] = array

    def _batches(self, arrays: Mapping[str, Any]) -> Iterator[dict[str, np.ndarray]]:
        return batches(arrays, {name: self.blobs[name].shape[0] for name in arrays})

    def _number(self, layer: str) -> int:
        if layer not in self.top_names:
            names, where = self._layer_names, self._definition.location
            told = unknown("layer", layer, names, where, "see net.layer_dict")
            raise also(ModelError(told), ValueError)
        return self._layer_names.index(layer)

    def _blob(self, name: str) -> str:
        if name not in self.blobs:
            told = unknown("blob", name, self.blobs, self._definition.location, "see net.blobs")
            raise also(ModelError(told), KeyError)
        return name

    def _weights(self) -> Weights:
        arrays = {n: [blob.data.copy() for blob in blobs] for n, blobs in self.params.items()}
        return Weights(arrays, net=self._definition)

    def __repr__(self) -> str:
        return (
            f"<caffe.Net {self._definition.name} ({self._definition.phase}), {len(self.layers)} layers>"
        )
