"""A solver file as a Solver record: validated, with its nets read and its rate as a function."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from demitasse import Location, ModelError, NetDefinition, Solver, unknown
from demitasse_caffe import fork_fields
from demitasse_caffe.net import NetFile, define, net_file, read_net, state_of
from demitasse_caffe.outline import Outline
from demitasse_caffe.overrides import Overrides
from demitasse_caffe.paths import find_file, moved
from demitasse_caffe.rates import POLICIES, Above, AtLeast, Poly, RampUp, Rate, StepsTaken, WarmUp
from demitasse_caffe.schema import Schema, number
from demitasse_caffe.upgrade import upgrade_solver

_UPDATES = {
    "AdaDelta": ("adadelta_update", ("momentum", "delta")),
    "AdaGrad": ("adagrad_update", ("delta",)),
    "Adam": ("adam_update", ("momentum", "momentum2", "delta")),
    "LARS": ("lars_update", ("momentum", "lars_trust")),
    "Nesterov": ("nesterov_update", ("momentum",)),
    "RMSProp": ("rmsprop_update", ("rms_decay", "delta")),
    "SGD": ("momentum_update", ("momentum",)),
}
"""The operation of each solver type, and the fields that become its attributes besides the decay."""

_BELOW_ONE = {
    "AdaDelta": ("momentum",),
    "Adam": ("momentum", "momentum2"),
    "RMSProp": ("rms_decay",),
}
"""Decay factors of running means, which must be below 1: at 1, nothing would ever be learnt."""

_LEAST_DELTA = 2.0**-126
"""Replaces a ``delta`` of 0, from which it does not differ beside any other number. A gradient that has
always been 0 then changes nothing, whereas 0 / 0 would be NaN, as it is in Caffe."""

_WITHOUT_MOMENTUM = ("AdaGrad", "RMSProp")
_NOT_NEGATIVE = (
    "max_iter",
    "test_interval",
    "display",
    "snapshot",
    "momentum",
    "weight_decay",
    "warmup_iter",
    "warmup_start_lr",
    "rampup_interval",
    "rampup_lr",
    "min_lr",
)
_AT_LEAST_ONE = ("iter_size", "average_loss")
_WORDS = {
    "regularization_type": ("L1", "L2"),
    "ap_version": ("11point", "MaxIntegral", "Integral"),
    "larc_policy": ("clip", "scale"),
}
_COUNTING = ("ap_version", "show_per_class_result")
"""Fields of SSD's fork that say how the counts of a DetectionEvaluate layer are reported."""
_OURS = ".demitasse"
_SUFFIXES = {
    "BINARYPROTO": (_OURS, ".caffemodel", ".solverstate"),
    "HDF5": (_OURS, ".caffemodel.h5", ".solverstate.h5"),
}
"""The files of a snapshot: those that Caffe's scripts continue from, and our own, which
also has cursors."""

_TRAINED = ("net", "net_param", "train_net", "train_net_param")


class SolverFile:
    """A parsed solver from which records are made."""

    def __init__(self, path: Path, message: Any, outline: Outline, schema: Schema) -> None:
        self._path, self._outline, self._schema = path, outline, schema
        self._message = message
        self._nets: dict[Path, NetFile] = {}
        self._overrides = Overrides(None, path, solver=True)

    def solver(self, overrides: Mapping[str, Any] | None) -> Solver:
        """Return the solver record. Raise ModelError with file, line and field."""
        message, given = self._overridden(overrides)
        self._check(message)
        update, attributes = self._update(message)
        train = self._train(message, given)
        tests = self._tests(message, given)
        rate = self._rate(message, train)
        return Solver(
            train=train,
            tests=tests,
            update=update,
            update_attributes=attributes,
            rate=rate,
            max_iterations=message.max_iter,
            passes=message.iter_size,
            test_iterations=tuple(count for count in message.test_iter if count),
            test_interval=message.test_interval if tests else 0,
            test_first=message.test_initialization,
            display_interval=message.display,
            snapshot_interval=message.snapshot,
            snapshot_prefix=message.snapshot_prefix,
            snapshot_last=message.snapshot_after_train,
            snapshot_suffixes=self._suffixes(message),
            snapshot_gradients=message.snapshot_diff,
            record=StepsTaken(rate),
            average_loss=message.average_loss,
            seed=message.random_seed if message.random_seed >= 0 else None,
            clip=self._clip(message),
            weights=self._weights(message),
            debug=message.debug_info,
            location=Location(str(self._path)),
            notes=(*self._outline.notes, *self._moved(message)),
        )

    def net(self, phase: str, overrides: Mapping[str, Any] | None) -> NetDefinition:
        """Return the net that is trained, or the first one that is tested."""
        message, given = self._overridden(overrides)
        if phase == "train":
            return self._train(message, given)
        tests = self._tests(message, given)
        return tests[0] if tests else define(*self._generic(message, given, "test"), self._schema)

    def _overridden(self, overrides: Mapping[str, Any] | None) -> tuple[Any, Overrides]:
        message = type(self._message)()
        message.CopyFrom(self._message)
        self._overrides = given = Overrides(overrides, self._path, solver=True)
        given.apply(message)
        upgrade_solver(message, Location(str(self._path)))
        return message, given

    def _where(self, field: str) -> str:
        """Return where a field's value comes from: its line, or the override that replaces it."""
        location = Location(str(self._path), self._outline.line(field))
        return self._overrides.told(field) or f"{location}: {field}"

    # The nets.

    def _train(self, message: Any, given: Overrides) -> NetDefinition:
        present = [name for name in _TRAINED if message.HasField(name)]
        if len(present) != 1:
            raise ModelError(
                f"{self._path}: exactly one of {', '.join(_TRAINED)} must name the net to train; "
                f"given: {', '.join(present) or 'none'}"
            )
        if present[0].startswith("train"):
            named = message.train_net if present[0] == "train_net" else None
            inline = message.train_net_param if named is None else None
            net = self._read(named, inline, "train_net")
            net = given.apply_to_net(net, "train")
            state = state_of(net, "train", self._schema, message.train_state)
            return define(net, state, self._schema)
        net, state = self._generic(message, given, "train", message.train_state)
        return define(net, state, self._schema)

    def _generic(self, message: Any, given: Overrides, phase: str, *states: Any) -> tuple[NetFile, Any]:
        """Return the net that serves both phases, and its state in one of them."""
        named = message.net if message.HasField("net") else None
        if named is None and not message.HasField("net_param"):
            raise ModelError(f"{self._path}: names no net for phase {phase}")
        inline = message.net_param if named is None else None
        net = given.apply_to_net(self._read(named, inline, "net"), phase)
        return net, state_of(net, phase, self._schema, *states)

    def _tests(self, message: Any, given: Overrides) -> tuple[NetDefinition, ...]:
        """Return the test nets: those of test_net_param, those of test_net, and then net or net_param
        once for each remaining test_iter. Nets that are tested 0 times are left out, and their files may
        be missing."""
        own = len(message.test_net_param) + len(message.test_net)
        count = len(message.test_iter)
        generic = message.HasField("net") or message.HasField("net_param")
        if count < own or (count > own and not generic):
            raise ModelError(
                f"{self._where('test_iter')}: {count} numbers for {own} test nets"
                + (" (test_net and test_net_param)" if not generic else "")
            )
        if message.test_state and len(message.test_state) != count:
            raise ModelError(
                f"{self._where('test_state')}: {len(message.test_state)} for {count} test nets"
            )
        for iterations in message.test_iter:
            if iterations < 0:
                raise ModelError(
                    f"{self._where('test_iter')}: {iterations} is not a number of iterations"
                )
        if any(message.test_iter) and message.test_interval < 1:
            if not message.HasField("test_interval"):
                needed = "needs test_interval, which is not given"
                raise ModelError(f"{self._where('test_iter')}: {needed}")
            raise ModelError(f"{self._where('test_interval')}: {message.test_interval} is less than 1")
        nets: list[NetFile] = []
        for index, inline in enumerate(message.test_net_param):
            skip = sum(len(m.layer) + len(m.layers) for m in message.test_net_param[:index])
            nets.append(self._inline(inline, "test_net_param", skip))
        nets += [self._read(name, None, "test_net") for name in message.test_net]
        nets = [given.apply_to_net(net, "test") for net in nets]
        nets += [self._generic(message, given, "test")[0] for _ in range(count - own)]
        states = [[state] for state in message.test_state] or [[] for _ in nets]
        return tuple(
            self._counted(message, define(net, state_of(net, "test", self._schema, *more), self._schema))
            for net, more, iterations in zip(nets, states, message.test_iter, strict=True)
            if iterations
        )

    def _counted(self, message: Any, net: NetDefinition) -> NetDefinition:
        """Return a test net in which the layers that evaluate detections count as the solver asks."""
        given = [name for name in _COUNTING if message.HasField(name)]
        layers = []
        for layer in net.layers:
            if given and layer.type in ("DetectionEvaluate", "EvalDetection"):
                parameters = type(layer.parameters)()
                parameters.CopyFrom(layer.parameters)
                for name in given:
                    if not parameters.detection_evaluate_param.HasField(name):
                        setattr(parameters.detection_evaluate_param, name, getattr(message, name))
                layer = dataclasses.replace(layer, parameters=parameters)
            layers.append(layer)
        return dataclasses.replace(net, layers=tuple(layers))

    def _read(self, name: str | None, inline: Any, field: str) -> NetFile:
        if name is None:
            return self._inline(inline, f"{field}_param")
        path = find_file(name, self._path, f"{self._where(field)}: file")
        if path not in self._nets:
            self._nets[path] = read_net(path, self._schema)
        return self._nets[path]

    def _moved(self, message: Any) -> Iterator[str]:
        """Yield a note for each net and weights file that is found elsewhere than at the
        path in the solver."""
        for field in ("net", "train_net", "test_net", "weights"):
            names = getattr(message, field)
            for name in [names] if isinstance(names, str) else names:
                yield from moved(name, self._path, f"{self._where(field)}: file")

    def _inline(self, message: Any, field: str, skip: int = 0) -> NetFile:
        return net_file(self._path, message, self._outline, self._schema, (field,), skip)

    # The numbers.

    def _check(self, message: Any) -> None:
        for name in _NOT_NEGATIVE:
            if not 0 <= (value := getattr(message, name)) < math.inf:
                raise ModelError(f"{self._where(name)}: {number(value):g} is not a number >= 0")
        for name in _AT_LEAST_ONE:
            if getattr(message, name) < 1:
                raise ModelError(f"{self._where(name)}: {getattr(message, name)} is less than 1")
        for name, valid in _WORDS.items():
            if (word := getattr(message, name)) not in valid:
                raise ModelError(unknown(name, word, valid, self._where(name)))
        for name, needed in (("warmup_start_lr", "warmup_iter"), ("rampup_lr", "rampup_interval")):
            if getattr(message, name) and not getattr(message, needed):
                raise ModelError(f"{self._where(name)}: needs {needed}, which is not given")
        if message.warmup_iter and message.rampup_interval:
            raise ModelError(
                f"{self._where('rampup_interval')}: makes the rate rise quadratically, warmup_iter "
                f"linearly; give only one"
            )

    def _clip(self, message: Any) -> float:
        """Return the maximum norm of the gradients. Caffe clips the sum over iter_size passes and then
        divides; here gradients are means over the passes."""
        limit = message.clip_gradients
        if limit < 0:
            return 0.0
        if not 0 < limit < math.inf:
            raise ModelError(
                f"{self._where('clip_gradients')}: {number(limit):g} is not a norm that gradients can "
                f"be scaled down to; give a positive number, or leave the field out"
            )
        return number(limit) / int(message.iter_size)

    def _suffixes(self, message: Any) -> tuple[str, ...]:
        enum = message.DESCRIPTOR.fields_by_name["snapshot_format"].enum_type
        return _SUFFIXES[enum.values_by_number[message.snapshot_format].name]

    def _weights(self, message: Any) -> tuple[str, ...]:
        """Return the files to start from; one field may hold several, separated by commas."""
        where = self._where("weights")
        names = [name.strip() for names in message.weights for name in names.split(",")]
        if not all(names):
            raise ModelError(f"{where}: a name between the commas of {', '.join(names)!r} is missing")
        return tuple(str(find_file(name, self._path, f"{where}: file")) for name in names)

    def _update(self, message: Any) -> tuple[str, Mapping[str, Any]]:
        """Return the operation of the solver's type, and its attributes."""
        kind = message.type
        if kind not in _UPDATES:
            raise ModelError(unknown("solver type", kind, _UPDATES, self._where("type")))
        operation, fields = _UPDATES[kind]
        self._check_fields(message, kind, fields)
        if message.larc:
            return "larc_update", self._larc(message)
        attributes = {name.removeprefix("lars_"): number(getattr(message, name)) for name in fields}
        if attributes.get("delta") == 0:
            attributes["delta"] = _LEAST_DELTA
        attributes["decay"] = number(message.weight_decay)
        if kind != "LARS":
            attributes["regularization"] = message.regularization_type
        return operation, attributes

    def _larc(self, message: Any) -> Mapping[str, Any]:
        """Return the attributes of an update with NVIDIA's layer-wise adaptive rate control."""
        where = self._where("larc")
        if message.type != "SGD" or message.regularization_type != "L2":
            raise ModelError(f"{where}: is for type 'SGD' with regularization_type 'L2'")
        if not 0 < (eta := number(message.larc_eta)) < math.inf:
            raise ModelError(f"{self._where('larc_eta')}: {eta:g} is not a number > 0")
        momentum = number(message.momentum)
        return {
            "momentum": momentum,
            "trust": (1 - momentum) * eta,
            "clip": message.larc_policy == "clip",
            "decay": number(message.weight_decay),
        }

    def _check_fields(self, message: Any, kind: str, fields: Collection[str]) -> None:
        """Raise ModelError for a field that the solver's type does not have, or that cannot have its
        value there."""
        if kind in _WITHOUT_MOMENTUM and message.momentum != 0:
            raise ModelError(
                f"{self._where('momentum')}: solver type {kind!r} has no momentum; it is "
                f"{number(message.momentum):g}"
            )
        if "momentum" in fields and message.momentum > 1:
            raise ModelError(
                f"{self._where('momentum')}: solver type {kind!r} needs a number from 0 to 1; it is "
                f"{number(message.momentum):g}, which would make updates grow at each iteration"
            )
        for name in _BELOW_ONE.get(kind, ()):
            if not 0 <= (value := getattr(message, name)) < 1:
                raise ModelError(
                    f"{self._where(name)}: solver type {kind!r} needs a number from 0 to below 1; it is "
                    f"{number(value):g}"
                )
        if "delta" in fields and not 0 <= (value := message.delta) < math.inf:
            raise ModelError(f"{self._where('delta')}: {number(value):g} is not a number >= 0")
        if "lars_trust" in fields and not 0 < (value := message.lars_trust) < math.inf:
            raise ModelError(f"{self._where('lars_trust')}: {number(value):g} is not a number > 0")
        if kind != "LARS" and message.HasField("lars_trust"):
            raise ModelError(
                f"{self._where('lars_trust')}: applies to type 'LARS' only; the type is {kind!r}"
            )
        if kind == "LARS" and message.regularization_type != "L2":
            raise ModelError(f"{self._where('regularization_type')}: type 'LARS' supports L2 only")

    def _rate(self, message: Any, train: NetDefinition) -> Rate:
        """Return the policy's record, made from the solver's fields of the same names. With
        base_batch_size, k times as many samples per iteration multiply the rate by k, and a warm-up
        begins at base_lr."""
        if not message.HasField("lr_policy"):
            raise ModelError(f"{self._path}: lr_policy is missing (valid: {', '.join(POLICIES)})")
        if message.lr_policy not in POLICIES:
            where = self._where("lr_policy")
            if owner := fork_fields.POLICIES.get(message.lr_policy):
                valid = ", ".join(POLICIES)
                raise ModelError(
                    f"{where}: {message.lr_policy!r} is a policy of {owner} (valid: {valid})"
                )
            raise ModelError(unknown("policy", message.lr_policy, POLICIES, where))
        policy = POLICIES[message.lr_policy]
        values = {f.name: self._rate_field(message, f.name) for f in dataclasses.fields(policy)}
        first = number(message.warmup_start_lr)
        if message.HasField("base_batch_size"):
            if "base_lr" not in values:
                raise ModelError(
                    f"{self._where('base_batch_size')}: multiplies base_lr, which lr_policy "
                    f"{message.lr_policy!r} does not use"
                )
            if not message.HasField("warmup_start_lr"):
                first = values["base_lr"]
            values["base_lr"] *= self._batch(message, train) / message.base_batch_size
        least, last = number(message.min_lr), values.get("base_lr", self._given_rate(message))
        if least > last:
            raise ModelError(f"{self._where('min_lr')}: {least:g} is above base_lr {last:g}")
        rate: Rate = policy(**values)
        if least and policy is Poly:  # a poly rate falls to min_lr gradually, not at once
            rate = Above(least, Poly(**{**values, "base_lr": last - least}))
        if message.warmup_iter:
            rate = WarmUp(first, last, message.warmup_iter, rate)
        if message.rampup_interval:
            rate = RampUp(number(message.rampup_lr), last, message.rampup_interval, rate)
        return AtLeast(least, rate) if least else rate

    def _given_rate(self, message: Any) -> float:
        """Return base_lr, which a warm-up leads to when lr_policy has rates of its own; infinity without
        a warm-up."""
        if message.warmup_iter or message.rampup_interval:
            return float(self._rate_field(message, "base_lr"))
        return math.inf

    def _stages(self, message: Any, name: str) -> tuple[float, ...]:
        """Return the rates of ``multifixed``, or the iterations up to which each rate holds,
        which must increase."""
        rates, last = list(map(number, message.stagelr)), list(message.stageiter)
        if not rates or len(rates) != len(last):
            raise ModelError(
                f"{self._where('lr_policy')}: lr_policy 'multifixed' needs a stagelr and a stageiter "
                f"for each stage; given: {len(rates)} and {len(last)}"
            )
        for rate in rates:
            if not 0 <= rate < math.inf:
                raise ModelError(f"{self._where('stagelr')}: {rate:g} is not a number >= 0")
        if any(later <= before for before, later in itertools.pairwise(last)):
            raise ModelError(f"{self._where('stageiter')}: {', '.join(map(str, last))} must rise")
        return tuple(rates if name == "stagelr" else last)

    def _batch(self, message: Any, train: NetDefinition) -> int:
        """Return how many samples an iteration of the trained net takes, by the first layer
        with a batch size."""
        where = self._where("base_batch_size")
        if message.base_batch_size < 1:
            raise ModelError(f"{where}: {message.base_batch_size} is less than 1")
        for layer in train.layers:
            if isinstance(layer.parameters, Mapping):
                size = layer.parameters.get("batch_size", 0)
            else:
                parts = [part for _, part in layer.parameters.ListFields()]
                size = max((getattr(part, "batch_size", 0) for part in parts), default=0)
            if size:
                return int(size) * int(message.iter_size)
        raise ModelError(f"{where}: no layer of the net that is trained has a batch_size")

    def _rate_field(self, message: Any, name: str) -> Any:
        """Return a number that the policy reads. ``gamma`` and ``power`` default to 0, as in Caffe,
        ``stepvalue`` may be empty, and a ``max_iter`` of 0 trains nothing."""
        reason = f"lr_policy {message.lr_policy!r} needs {name}"
        if name == "stepvalue":
            return tuple(message.stepvalue)
        if name in ("stagelr", "stageiter"):
            return self._stages(message, name)
        if not message.HasField(name) and name not in ("gamma", "power"):
            at = f"{self._path}" if name == "base_lr" else self._where("lr_policy")
            raise ModelError(f"{at}: {reason}")
        value = getattr(message, name)
        if isinstance(value, int):
            if value < (name != "max_iter"):
                raise ModelError(f"{self._where(name)}: {reason} of 1 or more; it is {value}")
            return value
        signed = name == "power" or (name == "gamma" and message.lr_policy == "sigmoid")
        if not math.isfinite(value) or (value < 0 and not signed):
            valid = "finite" if signed else "a number >= 0"
            raise ModelError(f"{self._where(name)}: {number(value):g} is not {valid}")
        return number(value)
