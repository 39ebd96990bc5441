"""The options of a ``sync`` table for this plugin: their names, values and conflicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from demitasse import RANK_MAPS, Algorithm, CompositionError, Quantity, unknown
from demitasse_allreduce.algorithms import ALGORITHMS

PACKED, BUCKETS, OVERLAP = "packed", "buckets", "overlap"
SC_B, NAIVE, SC_OB, SC_OBR = "SC-B", "naive", "SC-OB", "SC-OBR"

STAGES: Mapping[str, str] = {
    PACKED: "all gradients packed in one buffer and summed when backward has ended (swCaffe)",
    BUCKETS: "buckets summed one after the other, each as soon as it is final; nothing overlaps",
    OVERLAP: "as buckets, by a helper thread while backward goes on",
    SC_B: "S-Caffe's basic design: broadcast all, compute, reduce all to the root, which updates",
    NAIVE: "as SC-B, a layer's broadcast beside the forward of the one before (S-Caffe, figure 4)",
    SC_OB: "as SC-B, all broadcasts posted first, each waited for before its layer (figure 5)",
    SC_OBR: "as SC-OB, and a helper thread reduces a layer while the one before computes (figure 6)",
}
"""What each stage does, by name."""

ROOTED = (SC_B, NAIVE, SC_OB, SC_OBR)
"""Stages in which only one rank updates, and broadcasts the parameters."""

MEMBERS = ("consecutive", "node")
BETWEEN = ("slices", "leaders")

CHAIN = 8
"""Ranks of a lower communicator: the best number on S-Caffe's cluster (section 5)."""

BUCKET = 4 * 2**20
"""Bytes of a bucket: smaller buckets cost latency, larger ones delay the first sum."""


@dataclass(frozen=True)
class Options:
    """What a ``sync`` table requests; None if the plugin is to choose."""

    stage: str | None = None
    algorithm: str = "auto"
    ranks: str = "auto"
    bucket: int = BUCKET
    chain: int | None = None
    members: str = MEMBERS[0]
    lower: str | None = None
    upper: str | None = None
    shared: bool = True
    between: str | None = None
    trials: int = 3
    known: Mapping[str, Algorithm] = field(default_factory=lambda: ALGORITHMS, repr=False, hash=False)
    """The algorithms that composed plugins offer, by name."""

    @property
    def hierarchical(self) -> bool:
        """Whether reductions have two levels of communicators (S-Caffe's HR)."""
        levels = not (self.lower is None and self.upper is None)
        return levels or (self.chain is not None and self.algorithm == "auto")

    @classmethod
    def read(
        cls, given: Mapping[str, Any], where: object, known: Mapping[str, Algorithm] = ALGORITHMS
    ) -> Options:
        """Return the options of a table; ``known`` are the valid algorithms. Raises CompositionError,
        which begins with ``where`` and names the option, its value, the valid ones and the nearest
        name; DescriptionError for a ``bucket`` that is not a size."""
        names = [each.name for each in fields(cls) if each.name != "known"]
        for key in given:
            if key not in names:
                raise CompositionError(unknown("option of sync", key, names, where))
        values = {**given, "known": known}
        algorithms = {"algorithm": ("auto", *known), "lower": tuple(known), "upper": tuple(known)}
        for key, valid in (_NAMES | algorithms).items():
            if key in given and given[key] not in valid:
                text = given[key] if isinstance(given[key], str) else repr(given[key])
                raise CompositionError(unknown(key, text, valid, where))
        if "bucket" in given:
            values["bucket"] = _bytes(given["bucket"], f"{where}: bucket ")
        chain = given.get("chain", CHAIN)
        if not isinstance(chain, int) or isinstance(chain, bool) or chain < 1:
            raise CompositionError(f"{where}: chain = {chain!r} (valid: a whole number, 1 or more)")
        trials = given.get("trials", 0)
        if not isinstance(trials, int) or isinstance(trials, bool) or trials < 0:
            raise CompositionError(
                f"{where}: trials = {trials!r} (valid: a whole number; 0: by predicted cost alone)"
            )
        if not isinstance(given.get("shared", True), bool):
            raise CompositionError(f"{where}: shared = {given['shared']!r} (valid: true or false)")
        made = cls(**values)
        made._check(where)
        return made

    def _check(self, where: object) -> None:
        """Raise CompositionError for options that conflict."""
        rooted = self.stage in ROOTED
        if self.hierarchical and self.algorithm != "auto":
            raise CompositionError(
                f"{where}: algorithm = {self.algorithm!r} conflicts with lower and upper, the "
                f"algorithms of two levels; leave out the one or the others"
            )
        known = self.known
        taken = known[self.algorithm].options if self.algorithm in known else ("groups",)
        if "groups" not in taken and (self.chain is not None or self.members != MEMBERS[0]):
            two = ", ".join(name for name, each in known.items() if "groups" in each.options)
            raise CompositionError(
                f"{where}: algorithm = {self.algorithm!r} has one level, so chain and members do "
                f"not apply (valid with them: auto, {two})"
            )
        named = {"algorithm": self.algorithm, "lower": self.lower, "upper": self.upper}
        for key, name in named.items():
            goals = known[name].goals if name is not None and name in known else ("reduce",)
            if "reduce" not in goals and (rooted or key != "algorithm"):
                able = ", ".join(name for name, each in known.items() if "reduce" in each.goals)
                raise CompositionError(
                    f"{where}: {key} = {name!r} has no reduction to one rank, which "
                    f"{self.stage if rooted else 'a two-level reduction'} needs (valid: auto, {able})"
                )


_NAMES: dict[str, tuple[str, ...]] = {
    "stage": tuple(STAGES),
    "ranks": ("auto", *RANK_MAPS),
    "members": MEMBERS,
    "between": BETWEEN,
}


def _bytes(given: Any, where: str) -> int:
    """Return a size in bytes, from a number or from a text with a unit."""
    if isinstance(given, int) and not isinstance(given, bool) and given > 0:
        return given
    return int(Quantity.parse(str(given), unit="B", where=where).value)
