"""Workers' shares of the samples, and the weight of a worker's part of the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from demitasse import Graph, Node, Tensor

if TYPE_CHECKING:
    from demitasse_training.graph import NetGraph

_ENTRIES, _SUM, _MEAN = "entries", "sum", "mean"


@dataclass(frozen=True)
class Share:
    """A worker's part of every batch: ``index`` of ``workers``. Under weak scaling, each worker has a
    whole batch of the size in the file. ``apart`` says that workers are in several processes, and must
    all meet the same errors."""

    index: int = 0
    workers: int = 1
    weak: bool = False
    apart: bool = False

    def of(self, batch: int) -> tuple[int, int, int]:
        """Return (global batch, offset, count) for a file's ``batch``; the first shares take the
        remainder."""
        total = batch * self.workers if self.weak else batch
        each, rest = divmod(total, self.workers)
        offset = self.index * each + min(self.index, rest)
        return total, offset, each + (self.index < rest)


class _Part(NamedTuple):
    """What a worker has of a tensor that depends on samples: the share of samples it was computed from,
    and whether it is entries of the whole tensor, or a sum or mean over the worker's own samples."""

    share: float
    kind: str


def weighted(graph: Graph, share: Share) -> list[tuple[Tensor, float]]:
    """Return the objective with weights such that the workers' objectives (and gradients) add up to
    those of one worker with all samples.

    - A tensor with entries for each sample, or a sum over samples, counts in full.
    - A mean over samples counts by the worker's share of them.
    - What depends on no sample, such as a penalty on parameters, is the same everywhere, and also counts
      by the share.

    A scalar computed from samples is taken for their mean, unless its operation has the attribute
    ``normalization: "none"``. What is computed from sums, or from means, is again one, which is exact
    for their sums and multiples; what is computed from both is taken for a mean. A mean over the number
    of valid labels is one over the worker's own, unless it is taken over all workers
    (``across_workers``).
    """
    parts, own = _parts(graph), _own_share(graph, share)
    result = []
    for tensor, weight in graph.objective:
        part = parts.get(tensor, _Part(own, _MEAN))
        result.append((tensor, weight * part.share if part.kind == _MEAN else weight))
    return result


def share_of(graph: NetGraph, tensor: Tensor) -> float:
    """Return the share of all samples that a tensor depends on, or this worker's if it depends on
    none."""
    part = _parts(graph).get(tensor)
    return _own_share(graph, graph.share) if part is None else part.share


def _own_share(graph: Graph, share: Share) -> float:
    feeds = graph.feeds
    return feeds[0].count / feeds[0].batch if feeds else 1 / share.workers


def _parts(graph: Graph) -> dict[Tensor, _Part]:
    """Return what the worker has of each tensor that depends on samples."""
    parts = {t: _Part(f.count / f.batch, _ENTRIES) for f in graph.feeds for t in f.tensors.values()}
    for node in graph.nodes:
        given = {tensor: parts[tensor] for tensor in node.inputs if tensor in parts}
        for made in node.outputs if given else ():
            if made is not None:
                first = next(iter(given.values()))
                parts[made] = _Part(first.share, _kind(node, made, given))
    return parts


def _kind(node: Node, made: Tensor, given: Mapping[Tensor, _Part]) -> str:
    kinds = {part.kind for part in given.values()}
    if _ENTRIES not in kinds:
        return kinds.pop() if len(kinds) == 1 else _MEAN
    # A loss may also have an axis of extent 1; if there is only one sample, that is a batch axis.
    several = any(tensor.shape[:1] != (1,) for tensor in given)
    if made.shape and not (made.shape == (1,) and several):
        return _ENTRIES
    return _SUM if node.attributes.get("normalization") == "none" else _MEAN
