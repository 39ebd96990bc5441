"""The plugin's interface: entry point, manifest, hooks, cheap import, and a net that reads a set."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import demitasse
from demitasse import DataError, DataSpec, hookspecs
from demitasse_striped_io.plugin import data_source, diagnose


def test_the_entry_point_loads_and_implements_the_roles_of_the_manifest() -> None:
    (point,) = importlib.metadata.entry_points(group="demitasse.plugins", name="striped_io")
    module = point.load()
    (manifest,) = [found for found in demitasse.discover() if found.name == "striped_io"]
    assert manifest.problem == ""
    hooks = {name for name in vars(hookspecs) if hasattr(getattr(module, name, None), "demitasse_impl")}
    assert hooks == set(manifest.roles) == {"commands", "data_source", "diagnose", "observe", "programs"}
    assert set(manifest.roles["programs"]["programs"]) == set(module.programs())
    assert set(manifest.roles["commands"]["commands"]) == set(module.commands())


def test_the_plugin_module_is_cheap_to_import() -> None:
    program = (
        "import sys, demitasse_striped_io.plugin\n"
        "demitasse_striped_io.plugin.observe()\n"
        "print([m for m in ('numpy', 'numba', 'cv2', 'mpi4py', 'click') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_sources_of_other_kinds_are_left_to_others(tmp_path: Path, made: Any) -> None:
    assert data_source(spec=DataSpec(str(tmp_path))) is None
    assert data_source(spec=DataSpec({"data": np.zeros((2, 3))})) is None
    assert data_source(spec=DataSpec(str(made.path), "lmdb")) is None


def test_a_set_is_told_by_its_folder_or_its_index(made: Any) -> None:
    for name in (made.path, made.path / "index.json"):
        source = data_source(spec=DataSpec(str(name)))
        assert source is not None and source.size == 101
        source.close()


def test_what_was_asked_for_as_a_set_and_is_none_is_an_error_with_the_nearest_name(made: Any) -> None:
    with pytest.raises(DataError, match=r"is not a striped set.*did you mean .*/set'"):
        data_source(spec=DataSpec(str(made.path.with_name("sett")), "striped"))


def test_a_set_without_its_index_is_told_as_a_set(made: Any) -> None:
    for spoil, told in (
        ((made.path / "index.json").write_bytes, "damaged: it is not JSON"),
        (None, "No"),
    ):
        if spoil:
            spoil(b"")
        else:
            (made.path / "index.json").unlink()
        for name in (made.path, f"{made.path}?on_error=skip"):
            with pytest.raises(DataError, match=f"index.json: .*{told}"):
                data_source(spec=DataSpec(str(name)))


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        (None, r".*\bstriped_io\b.* \(--plugins .*\+striped_io\b.*\)"),
        ("striped", r"striped_io \(--plugins \+striped_io\)"),
    ],
)
def test_a_composition_without_the_plugin_names_it(made: Any, kind: str | None, others: str) -> None:
    """Besides other plugins that could be meant; alone if only it has this kind of samples."""
    told = rf"no composed plugin reads samples from .*\(asked: datasets\); not composed: {others}"
    with (
        demitasse.compose(plugins=["datasets"]) as runtime,
        pytest.raises(DataError, match=told),
    ):
        runtime.open_source(DataSpec(str(made.path), kind=kind))


def test_every_description_that_is_shipped_reads_sets() -> None:
    """A net that reads a set can be trained on each, including those of two workers, or of a GPU."""
    files = sorted((Path(__file__).parents[3] / "hwdesc").glob("*.toml"))
    named = {path.name: demitasse.load_machine(path).plugins for path in files}
    assert len(named) > 10
    assert [name for name, plugins in named.items() if "striped_io" not in plugins] == []


def test_findings_say_what_can_be_used_here() -> None:
    assert any("OpenCV" in finding.message for finding in diagnose())


def test_a_net_of_caffes_trains_from_a_striped_set(tmp_path: Path, made: Any) -> None:
    net = tmp_path / "net.prototxt"
    net.write_text("""
        layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN }
                data_param { source: "set" batch_size: 10 shuffle: true }
                transform_param { scale: 0.01 crop_size: 12 mirror: true } }
        layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
                inner_product_param { num_output: 101 weight_filler { type: "xavier" } } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" top: "loss" }
    """)
    solver = tmp_path / "solver.prototxt"
    solver.write_text('net: "net.prototxt" base_lr: 0.01 lr_policy: "fixed" max_iter: 3')
    plugins = ["striped_io", "caffe", "reference", "training", "snapshots"]
    with demitasse.compose(plugins=plugins) as runtime:
        result = runtime.trainer(solver).step(3)
        assert result.iteration == 3 and np.isfinite(result.loss)
