"""Which samples a worker gets, and the weight of its part of an objective, by how that is computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demitasse import DataError, DataSpec, Feed, Field, Graph, Layer, Location, Node, Tensor
from demitasse.operations import define
from demitasse_training.graph import NetGraph
from demitasse_training.shares import Share, weighted


def graph(count: int = 3, batch: int = 7) -> Graph:
    """A graph whose worker has ``count`` samples of ``batch``."""
    made = Graph({}, "train", "float64")
    fields = {"data": Tensor("data", (count, 4), "float64", "input")}
    made.feeds.append(Feed("data", None, fields, batch, 0, count))
    return made


def apply(to: Graph, *inputs: Tensor, shape: tuple[int, ...], **attributes: Any) -> Tensor:
    word = define("any", "any", "", inputs="*xs", outputs="y", shapes=lambda *_: (shape,))
    made = Tensor("y", shape, "float64", "activation")
    to.nodes.append(Node(word, list(inputs), [made], attributes, "layer", "forward"))
    return made


@given(st.integers(0, 50), st.integers(1, 9), st.booleans())
def test_shares_follow_each_other_and_differ_by_one_sample_at_most(
    batch: int, workers: int, weak: bool
) -> None:
    shares = [Share(index, workers, weak).of(batch) for index in range(workers)]
    ends = [offset + count for _, offset, count in shares]
    counts = [count for *_, count in shares]
    assert {total for total, *_ in shares} == {ends[-1]} == {batch * workers if weak else batch}
    assert [offset for _, offset, _ in shares] == [0, *ends[:-1]]
    assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1


def weight(of: Graph, tensor: Tensor, share: Share | None = None) -> float:
    of.objective = [(tensor, 2.0)]
    ((found, factor),) = weighted(of, share or Share(0, 2))
    assert found is tensor
    return factor / 2.0


@pytest.mark.parametrize(
    ("shape", "normalization", "wanted"),
    [
        ((3,), None, 1.0),
        ((3, 4), "full", 1.0),
        ((), None, 3 / 7),
        ((), "valid", 3 / 7),
        ((), "none", 1.0),
        ((1,), None, 3 / 7),  # the shape of users' losses in Python
        ((1,), "none", 1.0),
    ],
)
def test_entries_and_sums_count_in_full_and_means_by_the_share(
    shape: tuple[int, ...], normalization: str | None, wanted: float
) -> None:
    net = graph()
    given = {} if normalization is None else {"normalization": normalization}
    made = apply(net, net.feeds[0].tensors["data"], shape=shape, **given)
    assert weight(net, made) == pytest.approx(wanted)
    assert weight(net, apply(net, made, shape=shape)) == pytest.approx(wanted), "and what is made of it"


def test_one_sample_is_an_entry() -> None:
    net = graph(count=1)
    assert weight(net, apply(net, net.feeds[0].tensors["data"], shape=(1,))) == 1.0
    assert weight(net, apply(net, net.feeds[0].tensors["data"], shape=())) == pytest.approx(1 / 7)


def test_of_a_sum_and_a_mean_it_is_a_mean() -> None:
    net = graph()
    data = net.feeds[0].tensors["data"]
    both = apply(net, data, shape=(), normalization="none"), apply(net, data, shape=())
    assert weight(net, apply(net, *both, shape=())) == pytest.approx(3 / 7)


def test_what_depends_on_no_sample_is_the_same_on_every_worker() -> None:
    net = graph()
    learned = Tensor("w", (5,), "float64", "parameter")
    assert weight(net, apply(net, learned, shape=(), normalization="none")) == pytest.approx(3 / 7)
    net.feeds.clear()
    assert weight(net, apply(net, learned, shape=(5,)), Share(1, 4)) == 1 / 4


def test_each_source_has_its_own_share() -> None:
    net = graph()
    more = {"other": Tensor("other", (2, 4), "float64", "input")}
    net.feeds.append(Feed("other", None, more, 8, 0, 2))
    assert weight(net, apply(net, more["other"], shape=())) == 1 / 4


@pytest.mark.parametrize("index", [0, 1, 2])
@pytest.mark.parametrize("apart", [True, False])
def test_workers_in_several_processes_all_refuse_a_batch_that_leaves_one_without(
    index: int, apart: bool
) -> None:
    source: Any = SimpleNamespace(fields={"data": Field((4,), "float32")}, size=9)
    share = Share(index, 3, apart=apart)
    made = NetGraph({}, phase="train", dtype="float32", open_source=lambda spec: source, share=share)
    made._layer = Layer("samples", "Data", (), ("data",), {}, Location("net"))
    if apart or index == 2:
        with pytest.raises(DataError, match="a batch of 2 does not give each of 3 workers a sample"):
            made.source(DataSpec("any"), 2, {"data": "raw"})
    else:
        assert made.source(DataSpec("any"), 2, {"data": "raw"})[0].shape == (1, 4)
    assert made.source(DataSpec("any"), 3, {"data": "raw"})[0].shape == (1, 4)
