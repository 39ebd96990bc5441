"""A cache of compiled kernels: machine code on disk, by everything that it was compiled from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from demitasse import __version__, cache_folder, replacing

STANDARD = ("--std=c++17",)
_DIGEST = hashlib.sha256().digest_size


class CompiledKernels:
    """Machine code for one compute capability. ``compile(source, name, options)`` makes it. ``compiler``
    identifies the compiler's version, because an older driver needs what an older compiler made."""

    def __init__(
        self,
        capability: tuple[int, int],
        compile: Callable[[str, str, Sequence[str]], bytes],
        compiler: str = "",
    ) -> None:
        self._compiler = compiler
        self._architecture = f"--gpu-architecture=sm_{capability[0]}{capability[1]}"
        self._compile = compile

    def image(self, source: str, name: str, options: Sequence[str]) -> bytes:
        """Return the machine code of CUDA source text, from the cache or compiled now. New code is
        cached if the folder can be written."""
        told = [*STANDARD, self._architecture, *options]
        try:
            path = cache_folder("gpu") / f"{_key(source, [self._compiler, *told])}.cubin"
        except RuntimeError:  # a user without a home directory
            return self._compile(source, name, told)
        try:
            if (kept := _whole(path.read_bytes())) is not None:
                return kept
        except OSError:
            pass  # not compiled yet
        image = self._compile(source, name, told)
        with suppress(OSError):  # otherwise the next process compiles it again
            _write(path, image)
        return image


def _key(source: str, options: Sequence[str]) -> str:
    """Return a digest of everything that the machine code depends on: the text, the options, and the
    headers in their folders."""
    digest = hashlib.sha256("\0".join([__version__, source, *options]).encode())
    for folder in (option[2:] for option in options if option.startswith("-I")):
        for header in sorted(Path(folder).glob("*.cuh")):
            digest.update(header.read_bytes())
    return digest.hexdigest()[:40]


def _whole(content: bytes) -> bytes | None:
    """Return the machine code in a file, or None if it is damaged: a driver might still run it."""
    digest, image = content[:_DIGEST], content[_DIGEST:]
    return image if hashlib.sha256(image).digest() == digest else None


def _write(path: Path, image: bytes) -> None:
    """Write machine code and its checksum atomically, because other processes may be reading."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as partial:
        partial.write_bytes(hashlib.sha256(image).digest() + image)
