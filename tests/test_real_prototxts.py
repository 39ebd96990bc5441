"""Prototxts of many repositories: nets of Caffe's own layer types are planned and run on random data, in
both phases and backward where there is a loss; others say what is missing. The files are not the
project's; DEMITASSE_SHARED names their folder."""

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from real_files import DATA

import demitasse

FILES = DATA / "prototxt"

needs_files = pytest.mark.skipif(not FILES.is_dir(), reason=f"no prototxts under {FILES}")

SMALL = (
    "BVLC+caffe/examples/cifar10/cifar10_full_sigmoid_train_test_bn.prototxt",
    "BVLC+caffe/examples/cifar10/cifar10_full_train_test.prototxt",
    "BVLC+caffe/examples/cifar10/cifar10_quick.prototxt",
    "BVLC+caffe/examples/hdf5_classification/nonlinear_train_val.prototxt",
    "BVLC+caffe/examples/mnist/lenet_train_test.prototxt",
    "BVLC+caffe/examples/net_surgery/conv.prototxt",
    "BVLC+caffe/examples/siamese/mnist_siamese_train_test.prototxt",
    "BVLC+caffe@history/4e2328ca/data/lenet.prototxt",
    "BVLC+caffe@history/f4d65f44/examples/cifar/cifar10_80sec_train.prototxt",
)
"""Nets that take a second or less: V0, V1 and the present form; data from databases and HDF5."""

AS_IN_CAFFE = {
    "/fast_rcnn/train": "rows of 5 numbers",  # its regions are a Python layer's
    # Its batch is its Python layer's.
    "train_test_lstm_RGB": "(cannot view x|unknown bottom blob|is left out by)",
}
"""Nets that cannot run here, as they could not in Caffe with what there is, by a part of their path."""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    """The module tools/sweep_prototxts.py."""
    import sweep_prototxts

    return sweep_prototxts


def outcomes(tool: ModuleType, path: Path) -> list[Any]:
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        return list(tool.sweep(runtime, path))


@needs_files
@pytest.mark.parametrize("name", SMALL)
def test_a_small_net_runs_in_both_phases(tool: ModuleType, name: str) -> None:
    found = outcomes(tool, FILES / name)
    assert found
    assert {each.outcome for each in found} <= {"ran", "trained"}, found


def foreign() -> Iterator[tuple[Path, str]]:
    """Nets with a layer of a type that Caffe does not have, and all such types."""
    from demitasse_caffe.layers import LAYER_TYPES
    from demitasse_detection.layers import LAYER_TYPES as DETECTION_TYPES
    from demitasse_optical_flow.layers import LAYER_TYPES as FLOW_TYPES

    known = {kind.name for kind in (*LAYER_TYPES, *DETECTION_TYPES, *FLOW_TYPES)} | {"Python"}
    for path in sorted(FILES.rglob("*.prototxt")):
        text = re.sub("#.*", "", path.read_text(encoding="latin-1"))
        if re.search(r"cls3x|\blayers\s*\{", text):
            continue  # a template with holes; a net of old
        typed = re.findall(r"\blayer\s*\{[^{}]*?\btype\s*:\s*\"(\w+)\"", text)
        if unknown := set(typed) - known:
            yield path, "|".join(sorted(unknown))


@needs_files
def test_a_foreign_type_is_told_with_its_place_a_near_type_and_how_one_is_added() -> None:
    count = 0
    with demitasse.compose(plugins=["-tuning"]) as runtime:
        for path, types in foreign():
            errors = set()
            for phase in ("train", "test"):
                definition = runtime.read(path).net(phase)
                if {layer.type for layer in definition.layers} & set(types.split("|")):
                    with pytest.raises(demitasse.ModelError) as caught:
                        runtime.net(definition, phase=phase)
                    errors.add(str(caught.value))
            assert errors, path
            told = (
                rf"{re.escape(str(path))}:\d+: layer '[^']+' \((?P<kind>{types})\): unknown layer type "
                rf"'(?P=kind)'(: it belongs to .* types that are composed, which the READMEs .*|"
                rf"(; did you mean '\w+'\?)? \(valid: .* more, which the READMEs of plugins .*\)); "
                rf"a plugin adds a type with the layer_types hook"
            )
            for error in errors:
                assert re.match(told, error), error
            count += 1
    assert count >= 1


@needs_files
@pytest.mark.slow
@pytest.mark.parametrize(
    "folder", sorted(FILES.iterdir()) if FILES.is_dir() else [], ids=lambda f: f.name
)
def test_every_net_of_caffes_types_runs(tool: ModuleType, folder: Path) -> None:
    for path in tool.files([folder], ""):
        found = outcomes(tool, path)
        excuse = next((reason for part, reason in AS_IN_CAFFE.items() if part in str(path)), None)
        if excuse is not None:
            assert all(re.search(excuse, each.detail) for each in found), found
            continue
        for each in found:
            assert each.outcome not in ("failed", "crashed"), each
        ran = {each.phase for each in found if each.outcome in ("ran", "trained")}
        incomplete = {each.phase for each in found if each.outcome == "incomplete"}
        assert ran or not incomplete, (path, incomplete)
