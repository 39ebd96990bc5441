"""What stays in the process that made it."""

from __future__ import annotations

from typing import NoReturn

from demitasse import WorkerError


class Rooted:
    """A trainer or net, whose memory and threads are its own: to copy or pickle it raises WorkerError
    that says ``elsewhere``, how one has another."""

    elsewhere = ""

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise WorkerError(f"{self!r} cannot be copied or pickled; {self.elsewhere}")
