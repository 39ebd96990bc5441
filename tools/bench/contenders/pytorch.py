"""PyTorch: eager or compiled, with plain (NCHW) or channels_last activations."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from typing import Any

import numpy as np
import torch
import torch._inductor.config as inductor
import torch.nn.functional as functional
from torch import nn

from bench.layers import Layer, Net

Arrays = dict[str, np.ndarray]
TOGETHER = {"add": torch.add, "product": torch.mul, "maximum": torch.maximum}


class Model(nn.Module):
    """A net's layers; returns the logits of each loss, or the probabilities of a deploy net."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.layers = net.layers
        self.run = nn.ModuleList([module(net, layer) for layer in net.layers])

    def fill(self, arrays: Arrays) -> None:
        """Copy parameters and, if given, the statistics of batch_norm."""
        with torch.no_grad():
            for layer, run in zip(self.layers, self.run, strict=True):
                for number, parameter in enumerate(run.parameters()):
                    parameter.copy_(torch.from_numpy(arrays[f"{layer.name}.{number}"]))
                if f"{layer.name}.mean" in arrays:
                    run.running_mean.copy_(torch.from_numpy(arrays[f"{layer.name}.mean"]))
                    run.running_var.copy_(torch.from_numpy(arrays[f"{layer.name}.variance"]))

    def forward(self, data: torch.Tensor) -> list[torch.Tensor]:
        blobs, results = {"data": data}, []
        for layer, run in zip(self.layers, self.run, strict=True):
            inputs = [blobs[name] for name in layer.bottoms]
            if layer.kind == "softmax_loss":
                results.append(inputs[0].flatten(1))
            elif layer.kind == "softmax":
                results.append(functional.softmax(inputs[0].flatten(1).float(), dim=1))
            elif layer.kind in TOGETHER:
                blobs[layer.top] = reduce(TOGETHER[layer.kind], inputs)
            elif layer.kind == "concat":
                blobs[layer.top] = torch.cat(inputs, dim=1)
            else:
                blobs[layer.top] = run(inputs[0])
        return results


def module(net: Net, layer: Layer) -> nn.Module:
    """Return the module of a layer; an Identity if ``Model.forward`` itself does the work."""
    n, here = layer.numbers, layer.top in layer.bottoms
    match layer.kind:
        case "convolution":
            outputs, inputs = layer.parameters[0][0], layer.parameters[0][1] * n["groups"]
            window = (n["kernel"], n["stride"], n["pad"], n["dilation"])
            return nn.Conv2d(inputs, outputs, *window, groups=n["groups"], bias=n["bias"])
        case "inner_product":
            outputs, inputs = layer.parameters[0]
            return nn.Sequential(nn.Flatten(), nn.Linear(inputs, outputs, bias=n["bias"]))
        case "max_pool":
            return nn.MaxPool2d(n["kernel"], n["stride"], n["pad"], ceil_mode=n["up"])
        case "average_pool":
            return nn.AvgPool2d(n["kernel"], n["stride"], n["pad"], ceil_mode=n["up"])
        case "relu":
            return nn.ReLU(inplace=here)
        case "relu6":
            return nn.ReLU6(inplace=here)
        case "leaky_relu":
            return nn.LeakyReLU(n["slope"], inplace=here)
        case "prelu":
            return nn.PReLU(layer.shape[0])
        case "elu":
            return nn.ELU(n["alpha"], inplace=here)
        case "sigmoid":
            return nn.Sigmoid()
        case "tanh":
            return nn.Tanh()
        case "flat":
            return nn.Flatten()
        case "lrn":
            return nn.LocalResponseNorm(n["size"], n["alpha"], n["beta"], k=1.0)
        case "dropout":
            return nn.Dropout(n["ratio"])
        case "batch_norm":
            about = {"eps": n["epsilon"], "momentum": 1 - n["keep"], "affine": bool(n["scale"])}
            return (nn.BatchNorm2d if len(layer.shape) == 3 else nn.BatchNorm1d)(layer.shape[0], **about)
    return nn.Identity()


def make(net: Net, setting: str, arrays: Arrays) -> tuple[Model, torch.Tensor]:
    """Return the model with its weights, and the samples, in the setting's memory format."""
    model = Model(net)
    model.fill(arrays)
    data = torch.from_numpy(arrays["data"])
    if setting.endswith("channels_last"):
        model = model.to(memory_format=torch.channels_last)
        data = data.contiguous(memory_format=torch.channels_last)
    return model, data


class Training:
    """SGD with momentum, as one fused pass over the parameters. bf16 uses autocast with f32 masters. f64
    is a reference for other contenders."""

    def __init__(self, net: Net, precision: str, setting: str, arrays: Arrays) -> None:
        self.model, self.data = make(net, setting, arrays)
        if precision == "f64":
            self.model, self.data = self.model.double(), self.data.double()
        self.label = torch.from_numpy(arrays["label"]).long()
        self.half = precision == "bf16"
        self.weights = [x.numbers["weight"] for x in net.layers if x.kind == "softmax_loss"]
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), net.rate, momentum=0.9, weight_decay=net.decay, fused=True
        )
        self.objective = torch.compile(self._loss) if setting.startswith("compiled") else self._loss

    def _loss(self, data: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        mixed: AbstractContextManager[Any] = nullcontext()
        if self.half:
            mixed = torch.autocast("cpu", dtype=torch.bfloat16)
        with mixed:
            logits = self.model(data)
        wide = torch.promote_types(data.dtype, torch.float32)
        losses = [functional.cross_entropy(each.to(wide), label) for each in logits]
        return sum(w * loss for w, loss in zip(self.weights, losses, strict=True))

    def run(self, steps: int) -> list[float]:
        """Return the loss of each step."""
        losses = []
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.objective(self.data, self.label)
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def parameters(self) -> Arrays:
        """Return all learned parameters, in Caffe's order."""
        return {
            f"{layer.name}.{number}": parameter.detach().numpy()
            for layer, run in zip(self.model.layers, self.model.run, strict=True)
            for number, parameter in enumerate(run.parameters())
        }


class Inference:
    """The deploy net, forward. bf16 means weights and activations; compiled means with frozen
    weights."""

    def __init__(self, net: Net, precision: str, setting: str, arrays: Arrays) -> None:
        model, data = make(net, setting, arrays)
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        self.model, self.data = model.eval().to(kind), data.to(kind)
        if setting.startswith("compiled"):
            inductor.freezing = True
            self.model = torch.compile(self.model)

    def run(self, steps: int) -> list[float]:
        """Return the mean probability of the first class in each pass, to compare contenders."""
        with torch.inference_mode():
            return [float(self.model(self.data)[0].sum(0)[0]) for _ in range(steps)]

    def output(self) -> np.ndarray:
        """Return the probabilities."""
        with torch.inference_mode():
            return self.model(self.data)[0].float().numpy()


def prepare(threads: int) -> None:
    """Called before anything else."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)


def matrix_product(precision: str, size: int = 2048) -> float:
    """Return GFLOP/s of a square matrix product, the best of several."""
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(size, size).to(kind) for _ in range(2))
    return 2 * size**3 / fastest(lambda: a @ b) / 1e9


def triad(count: int = 2**25) -> float:
    """Return GB/s of a = b + s c over f32 arrays larger than any cache, counting three passes."""
    a, b, c = (torch.ones(count) for _ in range(3))
    return 12 * count / fastest(lambda: torch.add(b, c, alpha=3.0, out=a)) / 1e9


def fastest(work: Any, repeats: int = 10) -> float:
    """Return the seconds of the fastest call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
