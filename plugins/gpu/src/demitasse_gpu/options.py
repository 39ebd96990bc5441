"""What a description or a program may ask of the plugin (``options.gpu``)."""

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
    """Whether works in line become graphs; whether NVIDIA's libraries compute what they can; whether
    convolutions of our own are tried beside theirs; whether which of all is the quickest is kept from
    process to process; the most scratch memory, in bytes, that one convolution may take; and what makes
    the driver of a device's number, where that is no GPU's (given from Python alone)."""

    graphs: bool = True
    libraries: bool = True
    own_convolutions: bool = True
    remember: bool = True
    workspace: int = 2**30
    driver: Callable[[int], Driver] | None = None

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Options:
        """What is asked for. Raises CompositionError for an unknown option, or a value that cannot
        be."""
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
