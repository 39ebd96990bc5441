"""A step's loss, added up and checked on the device, so that no step waits for it in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from demitasse_gpu.array import DeviceArray, array_function, empty
from demitasse_gpu.engine import pinned
from demitasse_gpu.launch import Call, Launch, in_order

if TYPE_CHECKING:
    from demitasse import Work
    from demitasse_gpu.device import Device


class Guard:
    """``work`` follows the forward pass: it adds up the weighted ``losses``. If their sum is not finite,
    it makes ``rate`` negative, and the updates behind it change nothing. ``read`` waits until the device
    is done, and returns the loss."""

    def __init__(
        self, device: Device, losses: Sequence[tuple[DeviceArray, float]], rate: DeviceArray
    ) -> None:
        self._device = device
        total = empty(device, (1,), "float64")
        self._read = pinned(device, (1,), "float64")
        works: list[Work] = []
        for number, (loss, weight) in enumerate(losses):
            function = array_function(device, f"add_loss_{loss.dtype}")
            sizes = np.int64(loss.size), np.float64(weight), np.int32(number == 0)
            works.append(Launch(device, function, 1, 1, (total, loss, *sizes)))
        works.append(Launch(device, array_function(device, "guard_rate"), 1, 1, (total, rate)))
        target, source = self._read.ctypes.data, total.address
        works.append(
            Call(
                device,
                lambda stream: device.driver.copy(target, source, 8, "d2h", stream),
                (total, self._read),
            )
        )
        self.work = in_order(works)

    def read(self) -> float:
        """Return the loss of the last step."""
        self._device.synchronise()
        return float(self._read[0])
