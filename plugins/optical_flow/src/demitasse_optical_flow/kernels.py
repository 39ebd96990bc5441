"""NumPy kernels for the plugin's operations, in float64 whatever the tensors' type is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from demitasse import Candidate, Request, Work
from demitasse_optical_flow.flow_files import writing
from demitasse_optical_flow.losses import downsampled, loss, loss_backward
from demitasse_optical_flow.volumes import volume, volume_backward
from demitasse_optical_flow.warping import Warped

Compute: TypeAlias = Callable[..., Sequence[Any]]


def candidates(request: Request) -> Iterable[Candidate]:
    """Return one candidate for each of the plugin's own operations."""
    if request.operation.name == "write_flows":
        write = writing(request.attributes)
        return (Candidate("file of flows", lambda inputs, outputs, workspace: write(inputs)),)
    compute = _COMPUTED.get(request.operation.name)
    if compute is None:
        return ()
    about = request.attributes

    def bind(inputs: Sequence[Any], outputs: Sequence[Any], workspace: Any) -> Work:
        def work() -> None:
            for result, value in zip(outputs, compute(*inputs, about), strict=False):
                if result is not None:
                    result[...] = value

        return work

    return (Candidate(f"numpy {request.operation.name}", bind, in_place=False),)


def _channel_norm(x: Any, about: Any) -> Sequence[Any]:
    return (np.sqrt(np.square(np.asarray(x, np.float64)).sum(1, keepdims=True)),)


def _channel_norm_backward(dy: Any, x: Any, y: Any, about: Any) -> Sequence[Any]:
    return (np.asarray(dy, np.float64) * x / (np.asarray(y, np.float64) + 1e-9),)


def _warp_backward(dy: Any, x: Any, flow: Any, about: Any) -> Sequence[Any]:
    warped = Warped(x, flow, about)
    return warped.to_image(dy), warped.to_flow(dy)


def _loss_backward(*given: Any) -> Sequence[Any]:
    slope = loss_backward(*given)
    return slope, -slope


_COMPUTED: dict[str, Compute] = {
    "cost_volume": lambda a, b, about: (volume(a, b, about),),
    "cost_volume_backward": volume_backward,
    "warp": lambda x, flow, about: (Warped(x, flow, about).image(),),
    "warp_backward": _warp_backward,
    "downsample_known": lambda x, about: (downsampled(x, about),),
    "channel_norm": _channel_norm,
    "channel_norm_backward": _channel_norm_backward,
    "lpq_loss": loss,
    "lpq_loss_backward": _loss_backward,
}
