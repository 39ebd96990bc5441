"""Recurrent layers: T time steps of N streams, (T, N, ...), with indicators of where sequences begin."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np

from demitasse import GraphBuilder, Layer, Tensor
from demitasse_caffe.layers.base import CaffeLayer, Shape, learned
from demitasse_caffe.layers.sample_axes import check_samples
from demitasse_caffe.schema import number


class Recurrent(CaffeLayer):
    """What RNN and LSTM have in common. Bottoms: x, the sequence indicators, optionally an input that is
    the same at all steps, and with expose_hidden the states before the first step. Tops: the outputs,
    and with expose_hidden the states after the last step. Without expose_hidden, a batch continues where
    the last one ended, unless its first indicators are 0.

    As in Caffe, no gradient reaches exposed states: they come from another batch.
    """

    bottoms = (2, 5)
    tops = (1, 3)
    no_gradient = MappingProxyType({1: "sequence indicators"})
    word: str
    """The operation that computes the hidden state at each step, and the states after the last one."""
    gates: int
    """How many numbers the weights produce for each unit."""
    states: tuple[str, ...]

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given, exposed = message.recurrent_param, message.recurrent_param.expose_hidden
        units, (x, cont, *rest) = given.num_output, bottoms
        check_samples(x, 1, "streams", graph)
        states = len(self.states) if exposed else 0
        if not 0 <= len(rest) - states <= 1 or len(layer.tops) != 1 + states:
            also = f", {', '.join(self.states)}" if exposed else ""
            raise ValueError(
                f"has {len(bottoms)} bottoms and {len(layer.tops)} tops; with expose_hidden: "
                f"{str(exposed).lower()} the bottoms are x, cont, an optional x_static{also}, and the "
                f"tops the output{also}"
            )
        if units < 1:
            raise ValueError("recurrent_param needs a num_output of 1 or more")
        if len(x.shape) < 2 or cont.shape != x.shape[:2]:
            raise ValueError(
                f"x {x!r} should be (steps, streams, ...), and cont {cont!r} (steps, streams)"
            )
        static = rest[0] if len(rest) > states else None
        if static is not None and static.shape[:1] != x.shape[1:2]:
            raise ValueError(f"x_static {static!r} should have {x.shape[1]} streams, as x {x!r} has")
        wide, weights = self.gates * units, _Weights(message, given, graph)
        z = weights.product(x, wide, axis=2, biased=True)
        s = weights.product(static, wide, axis=1) if static is not None else None
        w = weights.next((wide, units))
        shape = (1, x.shape[1], units)
        kept = [] if exposed else [_kept(f"{layer.name}.{name}", shape, graph) for name in self.states]
        before = [graph.apply("recall", state) for state in kept] or rest[-states:]
        made = graph.apply(self.word, z, w, cont, *before, s)
        y, *after = made[: 1 + len(self.states)]
        for state, last in zip(kept, after, strict=False):
            graph.apply("remember", state, last)
        return [self.output(y, weights, units, graph), *after][: 1 + states]

    def output(self, y: Tensor, weights: _Weights, units: int, graph: GraphBuilder) -> Tensor:
        """Return the layer's output, computed from the hidden states."""
        return y


class LSTM(Recurrent):
    """Long short-term memory, with gates in the order input, forget, output, candidate. Parameters:
    weights of the input, biases, weights of the static input, weights of the hidden state."""

    name = "LSTM"
    word = "lstm"
    gates = 4
    states = ("h", "c")


class RNN(Recurrent):
    """A hidden state tanh(W_hh h + W_xh x + b_h), and the output tanh(W_ho h + b_o). Parameters: W_xh,
    b_h, weights of the static input, W_hh, W_ho, b_o."""

    name = "RNN"
    tops = (1, 2)
    bottoms = (2, 4)
    word = "rnn"
    gates = 1
    states = ("h",)

    def output(self, y: Tensor, weights: _Weights, units: int, graph: GraphBuilder) -> Tensor:
        made: Tensor = graph.apply("tanh", weights.product(y, units, axis=2, biased=True))
        return made


class Lstm(CaffeLayer):
    """The LSTM of the fork caffe-lstm. With ``batch_size`` its input is (steps x streams, ...), with
    that many streams; without it, (steps, streams, ...), as in CTPN's fork. With a second bottom, the
    sequence indicators, a batch continues where the last one ended; otherwise each batch is one sequence
    for each stream. Gradients of the sums before the gates are clipped to ``clipping_threshold``.
    Parameters: weights of the input, weights of the hidden state, biases; the gates are those of LSTM.

    If a sequence begins within a batch, or a batch continues another, the fork's gradient of the hidden
    state's weights uses states that did not take part, or omits streams. Here it is the true gradient.
    """

    name = "Lstm"
    bottoms = (1, 2)
    no_gradient = MappingProxyType({1: "sequence indicators"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        given, x = message.lstm_param, bottoms[0]
        units, bound = given.num_output, number(given.clipping_threshold)
        if units < 1:
            raise ValueError("lstm_param needs a num_output of 1 or more")
        if not 0 <= bound < math.inf:
            raise ValueError(f"clipping_threshold {bound:g} is not 0 or more; 0 means no clipping")
        lined = given.HasField("batch_size") or len(x.shape) < 3
        if lined and graph.workers > 1:
            raise ValueError(
                f"a batch is divided among {graph.workers} workers along its first axis, which for this "
                f"layer is time; train it with one worker"
            )
        check_samples(x, 1, "streams", graph)
        streams = given.batch_size if lined else x.shape[1]
        if lined and (streams < 1 or x.shape[0] % streams):
            raise ValueError(f"the rows of x {x!r} are not a multiple of batch_size {streams}")
        steps = x.shape[0] // streams if lined else x.shape[0]
        inputs = prod(x.shape[1:] if lined else x.shape[2:])
        rows = graph.apply("reshape", x, shape=(steps, streams, inputs))
        weights = _Weights(message, given, graph)
        of_x, of_h = weights.next((4 * units, inputs)), weights.next((4 * units, units))
        z = graph.apply("inner_product", rows, of_x, weights.next((4 * units,), "bias_filler"), axis=2)
        shape = (1, streams, units)
        names = "cell", "hidden"
        c, h = (_kept(f"{layer.name}.{name}", shape, graph) for name in names)
        if len(bottoms) == 1:
            after_first = np.ones((steps, streams), np.float32)
            after_first[:1] = 0
            cont = graph.constant(f"{layer.name}.goes_on", after_first)
            y = graph.apply("lstm", z, of_h, cont, h, c, bound=bound)[0]
        else:
            if prod(bottoms[1].shape) != steps * streams:
                raise ValueError(
                    f"{bottoms[1]!r} should have an indicator for each of {steps} steps of {streams} "
                    f"streams"
                )
            cont = graph.apply("reshape", bottoms[1], shape=(steps, streams))
            before = graph.apply("recall", h), graph.apply("recall", c)
            y, hidden, cell = graph.apply("lstm", z, of_h, cont, *before, bound=bound)[:3]
            graph.apply("remember", h, hidden)
            graph.apply("remember", c, cell)
        return [graph.apply("reshape", y, shape=(steps * streams, units)) if lined else y]


class LSTMUnit(CaffeLayer):
    """One step of an LSTM. It takes the previous cell state, (1, N, H), the sums before the gates, (1,
    N, 4H), and the sequence indicators, (1, N), and returns the cell state and the hidden state."""

    name = "LSTMUnit"
    bottoms = (3, 3)
    tops = (2, 2)
    no_gradient = MappingProxyType({2: "sequence indicators"})

    def expand(
        self, layer: Layer, message: Any, bottoms: Sequence[Tensor], graph: GraphBuilder
    ) -> Sequence[Tensor]:
        return list(graph.apply("lstm_step", *bottoms)[:2])


class _Weights:
    """A recurrent layer's parameters, one after the other."""

    def __init__(self, message: Any, given: Any, graph: GraphBuilder) -> None:
        self._message, self._given, self._graph, self._made = message, given, graph, 0

    def next(self, shape: Shape, field: str = "weight_filler") -> Tensor:
        """Return the next parameter."""
        fill = getattr(self._given, field)
        self._made += 1
        return learned(self._graph, self._message, self._made - 1, shape, fill)

    def product(self, x: Tensor, outputs: int, axis: int, biased: bool = False) -> Tensor:
        """Return x, flattened from an axis on, times the next parameter, plus another
        parameter if ``biased``."""
        w = self.next((outputs, prod(x.shape[axis:])))
        b = self.next((outputs,), "bias_filler") if biased else None
        made: Tensor = self._graph.apply("inner_product", x, w, b, axis=axis)
        return made


def _kept(name: str, shape: Shape, graph: GraphBuilder) -> Tensor:
    """Return the tensor in which a state is kept from batch to batch, initially zeros."""
    return graph.constant(name, np.broadcast_to(np.float32(0), shape))
