"""A folder that a user misspells is told, with the nearest name, wherever paths are given."""

from __future__ import annotations

from pathlib import Path

import pytest

from demitasse_cli.main import main

SAMPLES = (
    'layer { name: "d" type: "Data" top: "data" top: "label" data_param { source: "%s" batch_size: 2 } }'
)
NET = """layer { name: "ip" type: "InnerProduct" bottom: "data" top: "ip"
  inner_product_param { num_output: 10 } }
layer { name: "l" type: "SoftmaxWithLoss" bottom: "ip" bottom: "label" }
"""
SOLVER = 'net: "net.prototxt" base_lr: 0.1 lr_policy: "fixed" max_iter: 1'


@pytest.mark.parametrize(
    "words",
    [
        ["train", "exampels/solver.prototxt"],
        ["train", "solver.prototxt", "--hw", "exampels/machine.toml"],
        ["train", "solver.prototxt", "--weights", "exampels/net.caffemodel"],
        ["train", "solver.prototxt", "--resume", "exampels/net.demitasse"],
        ["train", "solver.prototxt", "--set", "layer.d.data_param.source=exampels/samples"],
        ["test", "exampels/net.prototxt", "--weights", "net.caffemodel"],
    ],
    ids=["solver", "description", "weights", "snapshot", "samples", "net"],
)
def test_a_misspelt_folder_is_told_with_the_nearest_name(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").mkdir()
    Path("net.prototxt").write_text(SAMPLES % "digits:train" + NET)
    Path("solver.prototxt").write_text(SOLVER)
    assert main(words) == 2
    assert "; there is no folder 'exampels', did you mean 'examples'?" in capsys.readouterr().err
