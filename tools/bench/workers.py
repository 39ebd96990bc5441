"""Processes of contenders; only the one that is asked something runs."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.contenders import OWN

TOOLS = Path(__file__).parents[1]


class Failure(Exception):  # noqa: N818 - it is a result like others, not an error of the bench
    """What a contender could not do, in its own words."""


class Worker:
    """One contender with one setting. It is stopped (SIGSTOP) except while it is asked something, so
    that spinning threads, such as OpenMP's, take no time from the others."""

    def __init__(
        self,
        contender: str,
        setting: str,
        python: Path,
        threads: int,
        limit: float,
        variables: Mapping[str, str],
    ) -> None:
        self.contender, self.setting, self._limit = contender, setting, limit
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - until close()
        environment = {
            **os.environ,
            "PYTHONPATH": str(TOOLS),
            "OMP_NUM_THREADS": str(threads),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "CUDA_VISIBLE_DEVICES": "",
            **variables,
        }
        self._process = subprocess.Popen(
            [str(python), "-P", "-m", "bench.contenders", contender, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            text=True,
        )

    def __repr__(self) -> str:
        return self.contender if self.contender == OWN else f"{self.contender} {self.setting}"

    def ask(self, do: str, **command: Any) -> dict[str, Any]:
        """Return the answer to a command. Raises Failure with the contender's error, or if it ended or
        took longer than the limit."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.send_signal(signal.SIGCONT)
        try:
            process.stdin.write(json.dumps({"do": do, **command}) + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise Failure(self._last_words()) from None
        if not select.select([process.stdout], [], [], self._limit)[0]:
            raise Failure(f"no answer to {do!r} in {self._limit:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise Failure(self._last_words())
        process.send_signal(signal.SIGSTOP)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Failure(answer["error"])
        return answer

    def _last_words(self) -> str:
        status = self._process.wait()
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return f"the process ended with status {status}: {lines[-1] if lines else 'it said nothing'}"

    def close(self) -> None:
        """End the process, stopped or not."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
