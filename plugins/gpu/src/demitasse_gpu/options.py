"""The plugin's options (``options.gpu``), from a description or a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from demitasse import CompositionError, DescriptionError, Quantity, option_place, unknown

if TYPE_CHECKING:
    from demitasse_gpu.driver import Driver

SWITCHES = ("graphs", "libraries", "own_convolutions", "remember")


@dataclass(frozen=True)
class Options:
    """``graphs``: whether consecutive works become graphs. ``libraries``: whether NVIDIA's libraries
    compute what they can. ``own_convolutions``: whether convolutions of our own are tried beside theirs.
    ``remember``: whether the choice of the fastest is kept from process to process. ``workspace``: the
    most scratch memory, in bytes, that one convolution may use. ``driver``: makes the driver of a device
    number if that is not a GPU's (from Python only)."""

    graphs: bool = True
    libraries: bool = True
    own_convolutions: bool = True
    remember: bool = True
    workspace: int = 2**30
    driver: Callable[[int], Driver] | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """Return the given options. Raises CompositionError for an unknown or invalid option."""
        names = [field.name for field in fields(cls)]
        for name, value in given.items():
            where = option_place(given, "gpu", name)
            if name not in names:
                raise CompositionError(unknown("option", name, names, where))
            if name in SWITCHES and not isinstance(value, bool):
                raise CompositionError(f"{where}: {name} = {value!r} (valid: true, false)")
            if name == "driver" and not callable(value):
                told = "valid: a function of a device's number that makes a driver, given from Python"
                raise CompositionError(f"{where}: driver = {value!r} ({told})")
            if name == "workspace" and not isinstance(value, str):
                raise CompositionError(
                    f"{where}: workspace = {value!r} (valid: a string like '512 MiB')"
                )
        asked = dict(given)
        if "workspace" in asked:
            where = f"{option_place(given, 'gpu', 'workspace')}: workspace = "
            try:
                size = Quantity.parse(asked["workspace"], unit="B", where=where)
            except DescriptionError as error:
                raise CompositionError(str(error)) from error
            asked["workspace"] = int(size.value)
        return cls(**asked)
