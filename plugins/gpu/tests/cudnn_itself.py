"""Have cuDNN itself make plans for convolutions of the nets on an H200 that is only described, and print
their number: ``python cudnn_itself.py STAND_IN``. STAND_IN is a library that has the names of CUDA's
driver and does nothing."""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from types import SimpleNamespace
from typing import Any

from demitasse_gpu.libraries import convolutions, cudnn
from demitasse_gpu.libraries.convolutions import Convolution
from demitasse_gpu.libraries.loading import library

H200 = {
    "maxGridSize": [2**31 - 1, 65535, 65535],
    "maxBlockSize": [1024, 1024, 64],
    "regsPerBlock": 65536,
    "multiProcessorCount": 132,
    "smCountOrigin": 0,
    "oversizedSharedMemoryPerBlock": 232448,
    "maxCtasPerSM": 32,
    "pciDeviceId": 9013,
    "isTccDriver": 0,
    "supportCoopLaunch": 1,
    "warpSize": 32,
    "maxSharedMemoryPerBlock": 49152,
    "maxSharedMemoryPerBlockOptin": 232448,
    "reservedSharedMemoryPerBlock": 1024,
    "maxThreadsPerBlock": 1024,
    "maxThreadsPerSM": 2048,
    "maxRegistersPerSM": 65536,
    "l2CacheSize": 62914560,
    "deviceName": "NVIDIA H200",
    "deviceVer": 900,
    "driverVer": 13000,
    "smClockRateKHz": 1980000,
    "memClockRateKHz": 3201000,
    "memoryBusWidth": 6144,
    "totalGlobalMem": 150_000_000_000,
    "cudaDeviceId": 0,
}
DEVICE = 38
"""CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, since 9.8."""


class Described(cudnn.Cudnn):
    """cuDNN for a device that is described, without a handle."""

    def __init__(self) -> None:
        driver = SimpleNamespace(later=lambda end, handle: end(handle))
        self.device: Any = SimpleNamespace(space="described", turn=threading.RLock(), driver=driver)
        self._library = library("cudnn")
        assert self._library is not None
        self._library.cudnnGetErrorString.restype = ctypes.c_char_p
        text = json.dumps(H200).encode() + b"\0"
        self.described = cudnn.Descriptor(self, DEVICE)
        about = 2702, 24, ctypes.c_int64(len(text)), ctypes.create_string_buffer(text)
        self.call("cudnnBackendSetAttribute", self.described.value, *about)
        self.described.finalise()

    def of_device(self, made: cudnn.Descriptor, kind: int) -> cudnn.Descriptor:
        """Set the device by its description."""
        attribute = {cudnn.HEURISTICS: 204, cudnn.PLAN: 407}.get(kind)
        return made if attribute is None else made.set(attribute, "descriptor", self.described)


# x, w, stride, pad: from AlexNet with its groups, GoogLeNet, ResNet-50, VGG-16 and LeNet.
SHAPES = [
    ((128, 3, 227, 227), (96, 3, 11, 11), 4, 0),
    ((128, 96, 27, 27), (256, 48, 5, 5), 1, 2),
    ((128, 3, 224, 224), (64, 3, 7, 7), 2, 3),
    ((128, 16, 28, 28), (32, 16, 5, 5), 1, 2),
    ((128, 832, 7, 7), (48, 832, 1, 1), 1, 0),
    ((128, 1024, 14, 14), (512, 1024, 1, 1), 2, 0),
    ((128, 512, 7, 7), (512, 512, 3, 3), 1, 1),
    ((64, 64, 224, 224), (64, 64, 3, 3), 1, 1),
    ((64, 1, 28, 28), (20, 1, 5, 5), 1, 0),
    ((64, 20, 12, 12), (50, 20, 5, 5), 1, 0),
]


def main() -> None:
    """Print, line by line, the number of a convolution's plans, and of those with bias and ReLU."""
    opened = Described()
    for x, w, stride, pad in SHAPES:
        rows = [(n + 2 * pad - k) // stride + 1 for n, k in zip(x[2:], w[2:], strict=True)]
        y = (x[0], w[0], *rows)
        for stored, tf32 in (("float32", False), ("float32", True), ("bfloat16", False)):
            for kind in (cudnn.FORWARD, cudnn.BACKWARD_DATA, cudnn.BACKWARD_WEIGHTS):
                about = ((stride,) * 2, (pad,) * 2, (1, 1)), stored, tf32, True, kind == cudnn.FORWARD
                asked = Convolution(kind, x, w, y, *about)
                tensors = asked.tensors()
                limits = asked.limit, asked.unwanted, convolutions.TRIED
                operation = opened.convolution(kind, *tensors, asked.geometry)
                found = [opened.plans([operation], *limits)]
                name, plan = list(found[0].items())[-1]
                plan.bind(tensors, (256, 512, 768), 4096)
                alone = opened.plans([operation], *limits, name)
                assert [*alone] == [name] and alone[name].workspace == plan.workspace
                if kind == cudnn.FORWARD:
                    operations, _ = convolutions._fused(opened, asked, tensors)
                    found.append(opened.plans(operations, *limits))
                print(kind, stored, tf32, *map(len, found))


if __name__ == "__main__":
    ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
    main()
