"""TensorFlow: each step is one tf.function, with or without XLA; activations are NHWC."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import tensorflow as tf

from bench.layers import Layer, Net

Arrays = dict[str, np.ndarray]
TOGETHER = {"add": tf.add, "product": tf.multiply, "maximum": tf.maximum}


class Model:
    """A net's variables, and its layers as operations."""

    def __init__(self, net: Net, precision: str, arrays: Arrays, training: bool) -> None:
        self.net, self.training = net, training
        self.kind = tf.bfloat16 if precision == "bf16" else tf.float32
        self.variables: dict[str, tf.Variable] = {}
        for layer in net.layers:
            for number in range(len(layer.parameters)):
                key = f"{layer.name}.{number}"
                self.variables[key] = tf.Variable(self._laid_out(layer, number, arrays[key]))
        self.moving = {
            layer.name: [
                tf.Variable(arrays.get(f"{layer.name}.mean", np.zeros(layer.shape[0], np.float32))),
                tf.Variable(arrays.get(f"{layer.name}.variance", np.ones(layer.shape[0], np.float32))),
            ]
            for layer in net.layers
            if layer.kind == "batch_norm"
        }

    def _laid_out(self, layer: Layer, number: int, array: np.ndarray) -> np.ndarray:
        """Convert a parameter from Caffe's order to TensorFlow's, for NHWC activations."""
        if number or layer.kind in ("batch_norm", "prelu"):
            return array
        if layer.kind == "convolution":
            return array.transpose(2, 3, *((0, 1) if _is_depthwise(layer) else (1, 0)))
        bottom = self.net.shape(layer.bottoms[0])
        if len(bottom) == 3:
            array = array.reshape(-1, *bottom).transpose(0, 2, 3, 1).reshape(len(array), -1)
        return array.T

    def parameters(self) -> Arrays:
        """Return all learned parameters, in Caffe's order."""
        return {
            f"{layer.name}.{number}": self._caffes(layer, number).reshape(shape)
            for layer in self.net.layers
            for number, shape in enumerate(layer.parameters)
        }

    def _caffes(self, layer: Layer, number: int) -> np.ndarray:
        """Convert a parameter from TensorFlow's order to Caffe's."""
        array = self.variables[f"{layer.name}.{number}"].numpy()
        if number or layer.kind in ("batch_norm", "prelu"):
            return array
        if layer.kind == "convolution":
            return array.transpose(*((2, 3) if _is_depthwise(layer) else (3, 2)), 0, 1)
        bottom = self.net.shape(layer.bottoms[0])
        if len(bottom) == 3:
            channels, *image = bottom
            return array.T.reshape(-1, *image, channels).transpose(0, 3, 1, 2)
        return array.T

    def __call__(self, data: tf.Tensor) -> list[tf.Tensor]:
        """Return the logits of each loss, or the probabilities of a deploy net."""
        blobs, results = {"data": tf.cast(data, self.kind)}, []
        for layer in self.net.layers:
            inputs = [blobs[name] for name in layer.bottoms]
            if layer.kind == "softmax_loss":
                results.append(_flat(inputs[0]))
            elif layer.kind == "softmax":
                results.append(tf.nn.softmax(tf.cast(_flat(inputs[0]), tf.float32)))
            else:
                blobs[layer.top] = self._apply(layer, inputs)
        return results

    def _apply(self, layer: Layer, inputs: list[tf.Tensor]) -> tf.Tensor:
        x, n = inputs[0], layer.numbers
        match layer.kind:
            case "convolution":
                return self._convolution(layer, x)
            case "inner_product":
                product = tf.matmul(_flat(x), self._weights(layer, 0))
                return tf.nn.bias_add(product, self._weights(layer, 1)) if n["bias"] else product
            case "max_pool":
                return tf.nn.max_pool2d(x, n["kernel"], n["stride"], _padding(layer, x))
            case "average_pool":
                return _average(layer, x, _padding(layer, x))
            case "relu":
                return tf.nn.relu(x)
            case "relu6":
                return tf.nn.relu6(x)
            case "leaky_relu":
                return tf.nn.leaky_relu(x, n["slope"])
            case "prelu":
                return tf.nn.relu(x) - self._weights(layer, 0) * tf.nn.relu(-x)
            case "elu":
                return tf.nn.relu(x) + n["alpha"] * tf.math.expm1(tf.minimum(x, 0.0))
            case "sigmoid":
                return tf.nn.sigmoid(x)
            case "tanh":
                return tf.nn.tanh(x)
            case "flat":
                return _flat(x if len(x.shape) == 2 else tf.transpose(x, (0, 3, 1, 2)))
            case "lrn":
                alpha = n["alpha"] / n["size"]  # TensorFlow multiplies the sum, Caffe the mean
                x = tf.cast(x, tf.float32) if self.kind == tf.bfloat16 else x
                y = tf.nn.local_response_normalization(x, n["size"] // 2, 1.0, alpha, n["beta"])
                return tf.cast(y, self.kind)
            case "dropout":
                return tf.nn.dropout(x, n["ratio"])
            case "batch_norm":
                return self._batch_norm(layer, x)
            case "add" | "product" | "maximum":
                return reduce(TOGETHER[layer.kind], inputs)
            case "concat":
                return tf.concat(inputs, len(x.shape) - 1)
        raise ValueError(f"layer {layer.name!r} has the kind {layer.kind!r}, which is not known")

    def _weights(self, layer: Layer, number: int) -> tf.Tensor:
        return tf.cast(self.variables[f"{layer.name}.{number}"], self.kind)

    def _convolution(self, layer: Layer, x: tf.Tensor) -> tf.Tensor:
        n, w, pad = layer.numbers, self._weights(layer, 0), _padding(layer, x)
        if isinstance(pad, list):
            # Explicit padding has no bf16 gradient in oneDNN here: it took 20 times as long.
            x, pad = tf.pad(x, pad), "VALID"
        about = {"strides": n["stride"], "padding": pad, "dilations": n["dilation"]}
        if n["groups"] == 1:
            y = tf.nn.conv2d(x, w, **about)
        elif _is_depthwise(layer):
            y = tf.nn.depthwise_conv2d(x, w, **{**about, "strides": (1, *n["stride"], 1)})
        else:  # there is no gradient of a grouped conv2d on a CPU
            parts = zip(tf.split(x, n["groups"], 3), tf.split(w, n["groups"], 3), strict=True)
            y = tf.concat([tf.nn.conv2d(a, b, **about) for a, b in parts], 3)
        return tf.nn.bias_add(y, self._weights(layer, 1)) if n["bias"] else y

    def _batch_norm(self, layer: Layer, x: tf.Tensor) -> tf.Tensor:
        if len(x.shape) == 2:  # the fused operation needs images
            return _flat(self._batch_norm(layer, x[:, None, None, :]))
        gamma, beta = tf.ones(layer.shape[0]), tf.zeros(layer.shape[0])
        if layer.parameters:
            gamma, beta = (self.variables[f"{layer.name}.{number}"] for number in (0, 1))
        mean, variance = self.moving[layer.name]
        fused, epsilon = tf.compat.v1.nn.fused_batch_norm, layer.numbers["epsilon"]
        if not self.training:
            return fused(x, gamma, beta, mean, variance, epsilon, is_training=False)[0]
        y, of_mean, of_variance = fused(x, gamma, beta, epsilon=epsilon, is_training=True)
        moving = 1 - layer.numbers["keep"]
        mean.assign_sub(moving * (mean - of_mean))
        variance.assign_sub(moving * (variance - of_variance))
        return y


def _flat(x: tf.Tensor) -> tf.Tensor:
    """Flatten to one row per sample."""
    return tf.reshape(x, (x.shape[0], -1))


def _average(layer: Layer, x: tf.Tensor, pad: Any) -> tf.Tensor:
    """Return the means of windows, including padding but not what lies beyond it, as in Caffe."""
    kernel, stride = layer.numbers["kernel"], layer.numbers["stride"]
    if not isinstance(pad, list):
        return tf.nn.avg_pool2d(x, kernel, stride, pad)
    sums = tf.nn.avg_pool2d(tf.pad(x, pad), kernel, stride, "VALID")
    beyond = [max(0, after - before) for before, after in pad[1:3]]
    if not any(beyond):
        return sums
    inside = [n + sum(each) - more for n, each, more in zip(x.shape[1:3], pad[1:3], beyond, strict=True)]
    ones = tf.pad(tf.ones((1, *inside, 1), x.dtype), [[0, 0], *([0, more] for more in beyond), [0, 0]])
    return sums / tf.nn.avg_pool2d(ones, kernel, stride, "VALID")


def _is_depthwise(layer: Layer) -> bool:
    """Whether each channel is convolved separately to one output channel."""
    return layer.numbers["groups"] == layer.shape[0] > 1 == layer.parameters[0][1]


def _padding(layer: Layer, x: tf.Tensor) -> Any:
    """Return VALID or SAME if they are equivalent to the layer (they are fastest), else explicit
    padding."""
    n = layer.numbers
    ones = (1, 1)
    axes = zip(
        *(x.shape[1:3], n["kernel"], n["stride"], n["pad"], n.get("dilation", ones), layer.shape[1:]),
        strict=True,
    )
    explicit, same = [], []
    for size, kernel, stride, pad, dilation, out in axes:
        reach = dilation * (kernel - 1) + 1
        after = (out - 1) * stride + reach - size - pad  # negative if the window ends before the edge
        after = max(after, pad if layer.kind == "convolution" else 0)
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        explicit.append([pad, after])
        same.append(-(-size // stride) == out and [pad, after] == [total // 2, total - total // 2])
    if explicit == [[0, 0], [0, 0]]:
        return "VALID"
    averages_padding = layer.kind == "average_pool" and max(n["pad"]) > 0
    return "SAME" if all(same) and not averages_padding else [[0, 0], *explicit, [0, 0]]


class Training:
    """SGD with momentum by TensorFlow's fused kernel; bf16 by casting f32 masters."""

    def __init__(self, net: Net, precision: str, setting: str, arrays: Arrays) -> None:
        self.net = net
        self.model = Model(net, precision, arrays, training=True)
        self.variables = list(self.model.variables.values())
        self.momenta = [tf.Variable(tf.zeros_like(each)) for each in self.variables]
        self.weights = [x.numbers["weight"] for x in net.layers if x.kind == "softmax_loss"]
        self.data = tf.constant(arrays["data"].transpose(0, 2, 3, 1).copy())
        self.label = tf.constant(arrays["label"].astype(np.int32))
        step = tf.function(self._step, jit_compile=setting == "xla", autograph=False)
        self.step = step.get_concrete_function(self.data, self.label)

    def _step(self, data: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.zeros(())
            for weight, logits in zip(self.weights, self.model(data), strict=True):
                logits = tf.cast(logits, tf.float32)
                each = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
                loss += weight * tf.reduce_mean(each)
        gradients = tape.gradient(loss, self.variables)
        for variable, momentum, gradient in zip(self.variables, self.momenta, gradients, strict=True):
            tf.raw_ops.ResourceApplyMomentum(
                var=variable.handle,
                accum=momentum.handle,
                lr=self.net.rate,
                grad=gradient + self.net.decay * variable,
                momentum=0.9,
            )
        return loss

    def run(self, steps: int) -> list[float]:
        """Return the loss of each step."""
        return [float(self.step(self.data, self.label)) for _ in range(steps)]

    def parameters(self) -> Arrays:
        """Return all learned parameters, in Caffe's order."""
        return self.model.parameters()


class Inference:
    """The deploy net, forward; bf16 means weights and activations."""

    def __init__(self, net: Net, precision: str, setting: str, arrays: Arrays) -> None:
        model = Model(net, precision, arrays, training=False)
        for key, variable in model.variables.items():
            model.variables[key] = tf.constant(variable)
        model.moving = {key: [tf.constant(each) for each in pair] for key, pair in model.moving.items()}
        self.data = tf.constant(arrays["data"].transpose(0, 2, 3, 1).copy())
        forward = tf.function(lambda data: model(data)[0], jit_compile=setting == "xla", autograph=False)
        self.forward = forward.get_concrete_function(self.data)

    def run(self, steps: int) -> list[float]:
        """Return the sum of the first class's probabilities in each pass."""
        return [float(tf.reduce_sum(self.forward(self.data)[:, 0])) for _ in range(steps)]

    def output(self) -> np.ndarray:
        """Return the probabilities."""
        return self.forward(self.data).numpy()


def prepare(threads: int) -> None:
    """Called before anything else."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    tf.random.set_seed(1)


def matrix_product(precision: str, size: int = 2048) -> float:
    """Return GFLOP/s of a square matrix product, the best of several."""
    kind = tf.bfloat16 if precision == "bf16" else tf.float32
    a, b = (tf.cast(tf.random.normal((size, size)), kind) for _ in range(2))
    product: Callable[[], Any] = tf.function(lambda: tf.matmul(a, b))
    times = []
    for _ in range(10):
        start = time.perf_counter()
        product().numpy()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times) / 1e9
