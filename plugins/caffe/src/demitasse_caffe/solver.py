"""A solver file as a Solver record: checked, with its nets read and its rate as a function."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demitasse import Location, ModelError, NetDefinition, Solver, unknown
from demitasse_caffe.net import NetFile, define, net_file, read_net, state_of
from demitasse_caffe.overrides import Overrides
from demitasse_caffe.paths import find_file
from demitasse_caffe.rates import POLICIES
from demitasse_caffe.schema import Schema, number
from demitasse_caffe.text import Outline
from demitasse_caffe.upgrade import upgrade_solver

_UPDATES = {"SGD": "momentum_update"}
_LATER = ("AdaDelta", "AdaGrad", "Adam", "Nesterov", "RMSProp")
_NOT_NEGATIVE = ("max_iter", "test_interval", "display", "snapshot", "momentum", "weight_decay")
_AT_LEAST_ONE = ("iter_size", "average_loss")
_TRAINED = ("net", "net_param", "train_net", "train_net_param")


class SolverFile:
    """A parsed solver, from which records are made."""

    def __init__(self, path: Path, message: Any, outline: Outline, schema: Schema) -> None:
        self._path, self._outline, self._schema = path, outline, schema
        self._message = message
        self._nets: dict[Path, NetFile] = {}

    def solver(self, overrides: Mapping[str, Any] | None) -> Solver:
        """The record. Raises ModelError that names file, line and field."""
        message, given = self._overridden(overrides)
        self._check(message)
        tests = self._tests(message, given)
        return Solver(
            train=self._train(message, given),
            tests=tests,
            update=self._update(message),
            update_attributes={
                "momentum": number(message.momentum),
                "decay": number(message.weight_decay),
                "regularization": message.regularization_type,
            },
            rate=self._rate(message),
            max_iterations=message.max_iter,
            passes=message.iter_size,
            test_iterations=tuple(message.test_iter),
            test_interval=message.test_interval if tests else 0,
            test_first=message.test_initialization,
            display_interval=message.display,
            snapshot_interval=message.snapshot,
            snapshot_prefix=message.snapshot_prefix,
            snapshot_last=message.snapshot_after_train,
            average_loss=message.average_loss,
            seed=message.random_seed if message.random_seed >= 0 else None,
            location=Location(str(self._path)),
        )

    def net(self, phase: str, overrides: Mapping[str, Any] | None) -> NetDefinition:
        """The net that is trained, or the first that is tested."""
        message, given = self._overridden(overrides)
        if phase == "train":
            return self._train(message, given)
        tests = self._tests(message, given)
        return tests[0] if tests else define(*self._generic(message, given, "test"), self._schema)

    def _overridden(self, overrides: Mapping[str, Any] | None) -> tuple[Any, Overrides]:
        message = type(self._message)()
        message.CopyFrom(self._message)
        given = Overrides(overrides, self._path, solver=True)
        given.apply(message)
        upgrade_solver(message, Location(str(self._path)))
        return message, given

    def _where(self, field: str) -> str:
        return f"{Location(str(self._path), self._outline.line(field))}: {field}"

    # The nets.

    def _train(self, message: Any, given: Overrides) -> NetDefinition:
        present = [name for name in _TRAINED if message.HasField(name)]
        if len(present) != 1:
            raise ModelError(
                f"{self._path}: one of {', '.join(_TRAINED)} says what is trained; "
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
        """The net that serves both phases, and its state in one."""
        named = message.net if message.HasField("net") else None
        if named is None and not message.HasField("net_param"):
            raise ModelError(f"{self._path}: names no net for phase {phase}")
        inline = message.net_param if named is None else None
        net = given.apply_to_net(self._read(named, inline, "net"), phase)
        return net, state_of(net, phase, self._schema, *states)

    def _tests(self, message: Any, given: Overrides) -> tuple[NetDefinition, ...]:
        """The nets of test_net_param, of test_net, and then net or net_param for each test_iter
        that is left over."""
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
            if iterations < 1:
                raise ModelError(f"{self._where('test_iter')}: {iterations} is not a positive number")
        if count and message.test_interval < 1:
            raise ModelError(
                f"{self._where('test_interval')}: must be positive where test_iter is given; "
                f"it is {message.test_interval}"
            )
        nets: list[NetFile] = []
        for index, inline in enumerate(message.test_net_param):
            skip = sum(len(m.layer) + len(m.layers) for m in message.test_net_param[:index])
            nets.append(self._inline(inline, "test_net_param", skip))
        nets += [self._read(name, None, "test_net") for name in message.test_net]
        nets = [given.apply_to_net(net, "test") for net in nets]
        nets += [self._generic(message, given, "test")[0] for _ in range(count - own)]
        states = [[state] for state in message.test_state] or [[] for _ in nets]
        return tuple(
            define(net, state_of(net, "test", self._schema, *more), self._schema)
            for net, more in zip(nets, states, strict=True)
        )

    def _read(self, name: str | None, inline: Any, field: str) -> NetFile:
        if name is None:
            return self._inline(inline, f"{field}_param")
        path = find_file(name, self._path, f"{self._where(field)}: file")
        if path not in self._nets:
            self._nets[path] = read_net(path, self._schema)
        return self._nets[path]

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
        if message.regularization_type not in ("L1", "L2"):
            raise ModelError(
                unknown(
                    "regularization",
                    message.regularization_type,
                    ("L1", "L2"),
                    self._where("regularization_type"),
                )
            )
        if message.clip_gradients >= 0:
            raise ModelError(
                f"{self._where('clip_gradients')}: is not supported yet; leave the field out"
            )
        if message.weights:
            raise ModelError(
                f"{self._where('weights')}: is not read; give the weights when the trainer is made "
                f"(weights=..., --weights)"
            )

    def _update(self, message: Any) -> str:
        kind = message.type
        if kind in _LATER:
            raise ModelError(
                f"{self._where('type')}: solver type {kind!r} is not supported yet; supported: "
                f"{', '.join(_UPDATES)}"
            )
        if kind not in _UPDATES:
            raise ModelError(unknown("solver type", kind, (*_UPDATES, *_LATER), self._where("type")))
        return _UPDATES[kind]

    def _rate(self, message: Any) -> Any:
        """The policy's record, from the solver's fields of the same names."""
        if not message.HasField("lr_policy"):
            raise ModelError(f"{self._path}: lr_policy is missing (valid: {', '.join(POLICIES)})")
        if message.lr_policy not in POLICIES:
            raise ModelError(unknown("policy", message.lr_policy, POLICIES, self._where("lr_policy")))
        policy = POLICIES[message.lr_policy]
        values = {f.name: self._rate_field(message, f.name) for f in dataclasses.fields(policy)}
        return policy(**values)

    def _rate_field(self, message: Any, name: str) -> Any:
        reason = f"lr_policy {message.lr_policy!r} needs {name}"
        if name == "stepvalue":
            steps = tuple(message.stepvalue)
            if not steps:
                raise ModelError(f"{self._where('lr_policy')}: {reason}")
            if list(steps) != sorted(steps):
                raise ModelError(f"{self._where(name)}: must ascend; it is {', '.join(map(str, steps))}")
            return steps
        if not message.HasField(name):
            at = f"{self._path}" if name == "base_lr" else self._where("lr_policy")
            raise ModelError(f"{at}: {reason}")
        value = getattr(message, name)
        if isinstance(value, int):
            if value < 1:
                raise ModelError(f"{self._where(name)}: {reason} of 1 or more; it is {value}")
            return value
        if not math.isfinite(value) or (value < 0 and name != "power"):
            raise ModelError(f"{self._where(name)}: {number(value):g} is not a number >= 0")
        return number(value)
