"""Accelerators, found in their drivers' files without loading their libraries."""

from __future__ import annotations

import re

from demitasse import KernelFiles


def devices(files: KernelFiles) -> tuple[str, ...]:
    """Return ``gpu:0 MODEL`` and so on, for each accelerator that this process can open."""
    models = [*_nvidia(files), *_amd(files)]
    return tuple(f"gpu:{index} {model}" for index, model in enumerate(models))


def _nvidia(files: KernelFiles) -> list[str]:
    # In a container, /proc shows all of the host's devices, but /dev only its own.
    nodes = {
        int(match[1])
        for name in files.names("dev", "nvidia*")
        if (match := re.fullmatch(r"dev/nvidia(\d+)", name))
    }
    models: dict[int, str] = {}
    for index, folder in enumerate(files.names("proc/driver/nvidia/gpus", "*")):
        text = files.text(f"{folder}/information")
        model = re.search(r"(?m)^Model:\s*(.+)$", text)
        minor = re.search(r"(?m)^Device Minor:\s*(\d+)", text)
        models[int(minor[1]) if minor else index] = model[1].strip() if model else "NVIDIA"
    return [models.get(minor, "NVIDIA") for minor in sorted(nodes)]


def _amd(files: KernelFiles) -> list[str]:
    models = []
    for folder in files.names("sys/class/kfd/kfd/topology/nodes", "*"):
        properties = files.text(f"{folder}/properties")
        units = re.search(r"(?m)^simd_count (\d+)$", properties)
        if units and int(units[1]) > 0:
            models.append(f"AMD {files.text(f'{folder}/name')}".rstrip())
    return models if files.names("dev", "kfd") else []
