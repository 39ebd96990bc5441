"""``--until``: the test score at which training ends."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

COMPARISONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
_FORM = re.compile(r"\s*([^<>=\s]+)\s*(>=|<=|>|<)\s*([-+.\deE]+)\s*")


@dataclass(frozen=True)
class Until:
    """A score and the value it must reach, as in ``accuracy>=0.99``."""

    score: str
    comparison: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Until:
        """Parse a condition. Raises click's BadParameter with what is valid."""
        match = _FORM.fullmatch(text)
        try:
            if match is not None:
                return cls(match[1], match[2], float(match[3]))
        except ValueError:
            match = None
        raise click.BadParameter(
            f"{text!r} (valid: a score, {', '.join(COMPARISONS)}, a number, like 'accuracy>=0.99')"
        )

    def __call__(self, scores: Mapping[str, Any]) -> bool:
        """Whether a test's scores fulfil the condition. Raises ModelError for a score that no net
        has."""
        from demitasse import ModelError, unknown

        if self.score not in scores:
            raise ModelError(unknown("score", self.score, scores, "--until"))
        found = scores[self.score]
        if not isinstance(found, int | float):
            raise ModelError(f"--until: the score {self.score!r} is a list of {len(found)} numbers")
        return bool(COMPARISONS[self.comparison](found, self.value))

    def __str__(self) -> str:
        return f"{self.score} {self.comparison} {self.value:g}"
