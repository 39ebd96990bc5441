"""The contenders, each in a separate process that is controlled by lines of JSON."""

from __future__ import annotations

OWN = "demitasse"
SETTINGS: dict[str, tuple[str, ...]] = {
    OWN: ("default",),
    "pytorch": ("eager-nchw", "eager-channels_last", "compiled-nchw", "compiled-channels_last"),
    "tensorflow": ("graph", "xla"),
}
MODULES = {OWN: "own", "pytorch": "pytorch", "tensorflow": "tensor_flow"}
