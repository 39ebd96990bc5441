"""``demitasse convert`` between the forms of nets, solvers, weights and states."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import demitasse
from demitasse import Weights
from demitasse_caffe.net import read_net
from demitasse_caffe.schema import schema
from demitasse_cli.main import main

V0 = """# the net of 2013
name: "old" input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layers { layer { name: "pad1" type: "padding" pad: 1 } bottom: "data" top: "pad1" }
layers { layer { name: "conv1" type: "conv" num_output: 4 kernelsize: 3 } bottom: "pad1" top: "conv1" }
"""
V1 = """name: "old" force_backward: true
layers { name: "data" type: DATA top: "x" data_param { source: "db" batch_size: 3 scale: 0.1 } }
layers { name: "ip" type: INNER_PRODUCT bottom: "x" top: "y" blobs_lr: 1 blobs_lr: 2
  inner_product_param { num_output: 4 } }
"""
SOLVER = 'net_param { name: "n" layers { type: RELU name: "r" } } solver_type: NESTEROV base_lr: 0.1'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    assert main(["convert", *arguments]) == status
    shown = capsys.readouterr()
    return shown.err if status else shown.out


@pytest.mark.parametrize("text", [V0, V1])
def test_an_older_net_becomes_the_present_one_in_text_and_binary(
    capsys: pytest.CaptureFixture[str], text: str
) -> None:
    Path("old.prototxt").write_text(text)
    out = told(capsys, "old.prototxt", "new.prototxt")
    assert out.startswith("wrote new.prototxt: net, 2 layers, upgraded to the current form; ")
    assert ("comments are not kept" in out) == ("#" in text)
    assert "layers {" not in Path("new.prototxt").read_text()
    told(capsys, "old.prototxt", "new.binarynet")
    told(capsys, "new.binarynet", "back.prototxt")
    assert Path("back.prototxt").read_text() == Path("new.prototxt").read_text()
    old, new = (read_net(Path(f"{name}.prototxt"), schema({})).message for name in ("old", "new"))
    assert old == new
    assert told(capsys, "new.prototxt", "newer.prototxt").count("already in the current form") == 1
    assert told(capsys, "new.prototxt", "newer.binarynet").count("form") == 0


def test_a_solver_is_upgraded_with_the_nets_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.prototxt").write_text(SOLVER)
    assert "solver, 1 layer, upgraded to the current form" in told(capsys, "s.prototxt", "s.binarynet")
    told(capsys, "s.binarynet", "new.prototxt")
    text = Path("new.prototxt").read_text()
    assert 'type: "Nesterov"' in text
    assert 'type: "ReLU"' in text
    assert "solver_type" not in text


def test_what_was_done_is_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.prototxt").write_text(V0)
    done = json.loads(told(capsys, "old.prototxt", "new.prototxt", "--json", "-"))
    assert done == {
        "source": "old.prototxt",
        "target": "new.prototxt",
        "kind": "net",
        "layers": 2,
        "upgraded": True,
        "notes": ["comments are not kept"],
        "bytes": Path("new.prototxt").stat().st_size,
    }


FORMS = ("caffemodel", "caffemodel.h5", "solverstate", "solverstate.h5", "demitasse")


@pytest.mark.parametrize("source", FORMS)
def test_weights_go_from_every_form_to_every_other(
    capsys: pytest.CaptureFixture[str], folder: Path, source: str
) -> None:
    arrays = {"z": [np.ones((2, 3), np.float32), np.ones(2, np.float32)], "a": [np.zeros(4, np.float32)]}
    weights = Weights(
        arrays, iteration=5, state={"history": {k: [a + 1 for a in v] for k, v in arrays.items()}}
    )
    with demitasse.compose() as runtime:
        runtime.write(f"w.{source}", weights)
        keeps = "caffemodel" not in source
        for number, target in enumerate(form for form in FORMS if keeps or "solverstate" not in form):
            out = told(capsys, f"w.{source}", f"{number}.{target}")
            assert "2 layers, 12 parameters" in out
            found = runtime.read(f"{number}.{target}").weights()
            assert {k: [a.tolist() for a in v] for k, v in found.parameters.items()} == {
                k: [a.tolist() for a in v] for k, v in arrays.items()
            }
            if keeps and "caffemodel" not in target:
                assert found.iteration == 5
                assert [a.tolist() for a in found.state["history"]["z"]] == [[[2] * 3] * 2, [2] * 2]
                assert "left out" not in out
            elif keeps:
                assert "has no place for it: iteration 5, solver state history" in out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ("old.prototxt", "new.npz"),
            r"new.npz: no composed plugin writes files with this suffix \(weights: .caffem",
        ),
        (("old.prototxt", "w.caffemodel"), "old.prototxt: is a net; weights are in a .caffemodel"),
        (("missing.prototxt", "new.prototxt"), "no such file: missing.prototxt"),
        (("bare.caffemodel", "new.prototxt"), "bare.caffemodel: holds weights only"),
        (("bare.caffemodel", "x.solverstate"), "x.solverstate: the weights have no iteration"),
        (("s.solverstate", "new.prototxt"), "s.solverstate: holds weights; the net is in a .prototxt"),
        (
            ("foreign.prototxt", "new.prototxt"),
            "foreign.prototxt:1:48: mask_pooling_param is not a .* 'MaskPooling', a type of MNC",
        ),
        (("old.prototxt", "old.prototxt", "--force"), "is the file to convert; give another name"),
        (("nothing", "s.demitasse", "--force"), "no such file: nothing"),
        (
            ("s.demitasse", "new.prototxt"),
            "s.demitasse: is not one of Caffe's files, and only Caffe's nets",
        ),
    ],
)
def test_what_cannot_be_converted_is_said(
    capsys: pytest.CaptureFixture[str], folder: Path, given: tuple[str, ...], message: str
) -> None:
    Path("old.prototxt").write_text(V1)
    Path("foreign.prototxt").write_text(
        'layer { name: "r" type: "MaskPooling" top: "x" mask_pooling_param { pooled_h: 6 } }'
    )
    with demitasse.compose(plugins=["caffe"]) as runtime:
        runtime.write("bare.caffemodel", Weights({"a": [np.ones(2, np.float32)]}))
        runtime.write("s.solverstate", Weights({"a": [np.ones(2, np.float32)]}, iteration=1))
    with demitasse.compose(plugins=["snapshots"]) as runtime:
        runtime.write("s.demitasse", Weights({"a": [np.ones(2, np.float32)]}))
    before = sorted(path.name for path in folder.iterdir())
    assert re.search(message, told(capsys, *given, status=2))
    assert sorted(path.name for path in folder.iterdir()) == before


def saved(path: str, iteration: int = 3) -> None:
    arrays = {"ip": [np.arange(6, dtype=np.float32).reshape(2, 3)]}
    with demitasse.compose() as runtime:
        runtime.write(path, Weights(arrays, iteration, {"history": arrays}))


@pytest.mark.parametrize("there", [False, True])
def test_a_conversion_that_fails_leaves_all_as_it_was(
    there: bool, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here what was written cannot be read back."""
    saved("in.demitasse")
    target = "out.solverstate" if there else "new/out.solverstate"
    if there:
        Path(target).write_text("older")
        Path("out.txt").write_text("mine")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    read = demitasse.Runtime.read

    def refuse(self: demitasse.Runtime, path: Path) -> object:
        if Path(path).name == "out.solverstate":
            assert Path(path).with_suffix(".caffemodel").is_file()
            raise demitasse.ModelError("it cannot be read back")
        return read(self, path)

    with monkeypatch.context() as patch:
        patch.setattr(demitasse.Runtime, "read", refuse)
        assert "it cannot be" in told(capsys, "in.demitasse", target, "--force", status=2)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not Path("new").exists()
    told(capsys, "in.demitasse", target, "--force")
    assert sorted(path.name for path in Path(target).parent.glob("out.*")) == [
        "out.caffemodel",
        "out.solverstate",
        *(["out.txt"] if there else []),
    ]


def test_folders_that_were_made_for_a_conversion_that_fails_are_gone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved("in.caffemodel")
    assert "have no iteration" in told(capsys, "in.caffemodel", "a/b/out.solverstate", status=2)
    assert [path.name for path in folder.iterdir()] == ["in.caffemodel"]
