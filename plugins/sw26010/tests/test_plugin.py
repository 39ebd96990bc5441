"""The plugin is found, its manifest is true, and its memory and explanations are as they say."""

from __future__ import annotations

import inspect
import tomllib
from importlib.metadata import entry_points
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from demitasse import Place, PlanError, Request, compose
from demitasse.operations import VOCABULARY
from demitasse_sw26010.explanation import report_of
from demitasse_sw26010.kernels import FACTORIES, candidates
from demitasse_sw26010.model.cost import Cost
from demitasse_sw26010.reproduction.training import offers, spec


def plugin() -> Any:
    (entry,) = entry_points(group="demitasse.plugins", name="sw26010")
    return entry.load()


def test_manifest_declares_the_hooks_that_are_implemented() -> None:
    manifest = tomllib.loads(files("demitasse_sw26010").joinpath("plugin.toml").read_text("utf-8"))
    implemented = {
        name
        for name, member in inspect.getmembers(plugin(), inspect.isfunction)
        if hasattr(member, "demitasse_impl")
    }
    assert manifest["name"] == "sw26010"
    assert not manifest["automatic"]
    assert set(manifest["roles"]) == implemented


def test_tensors_lie_in_ddr3_and_not_in_ldm() -> None:
    allocator = plugin().allocator
    assert allocator("host", {}) is None
    with pytest.raises(PlanError, match="64 KiB of scratch memory"):
        allocator("ldm", {})
    ddr3 = allocator("ddr3", {})
    memory = ddr3.allocate(1000)
    view = memory.view(128, (4, 5), "float32")
    assert view.ctypes.data % 128 == 0
    assert not view.any()
    view[...] = 1
    assert memory.view(128, (20,), "float32").sum() == 20
    with pytest.raises(ValueError, match="do not fit in a block"):
        memory.view(992, (3,), "float32")
    memory.close()
    with pytest.raises(ValueError, match="closed"):
        memory.view(0, (1,), "float32")
    assert (ddr3.space, ddr3.allocations, ddr3.bytes) == ("ddr3", 1, 1000)


def test_only_what_lies_in_ddr3_as_float32_is_served() -> None:
    with compose(plugins=["caffe", "training", "reference"]) as runtime:
        assert set(FACTORIES) <= set(runtime.vocabulary)
    relu, x = VOCABULARY["relu"], spec((4, 4))
    for dtype, space in (("float64", "ddr3"), ("float32", "host")):
        of = spec((4, 4), dtype)
        asked = Request(relu, (of,), (of,), relu.attributes, Place("core_group", space))
        assert not candidates(asked)
    asked = Request(relu, (x,), (x,), relu.attributes, Place("core_group", "ddr3"))
    assert len(list(candidates(asked))) == 1


def test_a_kernels_author_sees_the_principles_that_it_breaks() -> None:
    w = spec((64, 3, 3, 3))
    image, made = spec((2, 3, 28, 28)), spec((2, 64, 28, 28))
    (explicit,) = offers("convolution", (image, w, None), (made,), {"pad": (1, 1)})
    report = explicit.bind.explain()  # type: ignore[attr-defined]
    text = str(report)
    assert "ms (simulated)" in text
    assert "result 49,152" in text
    assert any("padding" in finding for finding in report.findings)
    assert any("principle 3" in finding for finding in report.findings)
    (relu,) = offers("relu", (spec((2**22,)),), (spec((2**22,)),), {})
    assert not report_of(relu.bind).findings  # type: ignore[arg-type]


def test_work_on_the_mpe_is_found() -> None:
    zero = dict.fromkeys(Cost.__dataclass_fields__, 0.0)
    cost = Cost(**{**zero, "seconds": 1.0, "mpe_cycles": 0.5 * 1.45e9})
    assert [finding[:40] for finding in cost.findings()] == ["principle 1: 50% of the time is work on "]


def test_every_figure_has_a_unit_and_agrees_with_the_others() -> None:
    from demitasse_sw26010.model import figures

    assert pytest.approx(figures.PEAK) == figures.CPES * figures.CLOCK * 8
    assert np.isclose(figures.MESSAGE_CYCLES, 1.165, atol=0.001)
    assert np.isclose(figures.BROADCAST_CYCLES, 0.666, atol=0.001)
