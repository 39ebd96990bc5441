"""PyTorch on a GPU with its best settings, on the nets that tools/bench describes."""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from bench import values
from bench.contenders import pytorch as peers
from bench.layers import Net
from held import Wish, serve, timed


class Training:
    """Training steps with samples on the device, channels_last (planes in f32), autotuned cuDNN and a
    fused optimizer. ``setting`` is eager, compiled, or reduce-overhead (compiled with CUDA graphs)."""

    def __init__(self, net: Net, precision: str, setting: str) -> None:
        import torch

        start = time.perf_counter()
        self.torch, before = torch, torch.cuda.memory_allocated()
        torch.backends.cudnn.benchmark = True
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        arrays = {**values.weights(net), **values.samples(net, net.batch)}
        # cuDNN computes exact float32 only on planes.
        form = "planes" if precision == "f32" else "channels_last"
        model, data = peers.make(net, form, arrays)
        self.model, self.data = model.cuda(), data.cuda()
        self.label = torch.from_numpy(arrays["label"].astype(np.int64)).cuda()
        self.half = precision == "bf16"
        self.weights = [x.numbers["weight"] for x in net.layers if x.kind == "softmax_loss"]
        about = {"momentum": 0.9, "weight_decay": net.decay, "fused": True}
        self.optimizer = torch.optim.SGD(self.model.parameters(), net.rate, **about)
        modes = {"eager": None, "compiled": "default", "reduce-overhead": "reduce-overhead"}
        mode = modes[setting]
        self.objective: Any = self._loss if mode is None else torch.compile(self._loss, mode=mode)
        torch.cuda.reset_peak_memory_stats()
        self.run(5)
        self.memory = int(torch.cuda.max_memory_allocated() - before)
        """The peak of its device memory, in bytes."""
        self.prepared = time.perf_counter() - start
        """How many seconds preparing took."""

    def _loss(self, data: Any, label: Any) -> Any:
        torch = self.torch
        mixed = torch.autocast("cuda", dtype=torch.bfloat16) if self.half else nullcontext()
        with mixed:
            logits = self.model(data)
            losses = [torch.nn.functional.cross_entropy(each.float(), label) for each in logits]
        return sum(w * loss for w, loss in zip(self.weights, losses, strict=True))

    def run(self, steps: int) -> None:
        """Run some steps to their end. The loss is read once, which favours PyTorch as much as
        possible."""
        for _ in range(steps):
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.objective(self.data, self.label)
            loss.backward()
            self.optimizer.step()
        self.torch.cuda.synchronize()

    def timed(self, steps: int) -> float:
        """Return the seconds that some steps take."""
        return timed(self, steps)

    def close(self) -> None:
        del self.model, self.data, self.optimizer, self.objective
        self.torch.compiler.reset()
        self.torch.cuda.empty_cache()


def main() -> None:
    """Prepare a net, and make it available in a folder."""
    from bench.nets import NETS

    name, precision, batch, setting, folder = sys.argv[1:]
    net = NETS[name]()
    net.batch = int(batch)
    training = Training(net, precision, setting)
    about = f"{training.prepared} {training.memory}"
    serve(training, about, Wish(name, precision, net.batch, setting).place(Path(folder)))


if __name__ == "__main__":
    main()
