"""Fields and words of Caffe's forks: ignored if they change nothing, otherwise rejected by name."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from demitasse import ModelError, compose
from demitasse_caffe.conversion import convert_model
from demitasse_caffe.fork_fields import fork_field
from demitasse_caffe.outline import Outline
from demitasse_caffe.schema import schema
from demitasse_caffe.text import parse

INPUT = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 } } }\n'
SOLVER = 'net: "net.prototxt"\nbase_lr: 0.1\nlr_policy: "fixed"\nmax_iter: 10\n'


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            'engine: "MKLDNN"\n' + INPUT,
            r"net\.prototxt: fields of Intel's fork that have no effect here: engine \(",
        ),
        (
            INPUT + "bn_stats_batch_size: 32",
            r"Intel's fork that have no effect here: bn_stats_batch_size \(line 2; each worker "
            r"normalises by all of its "
            r"samples\)$",
        ),
        (
            INPUT + 'layer { name: "r" type: "ReLU" bottom: "data" top: "r"\n'
            'engine: "MKL2017"\nrelu_param { engine: MKLDNN fuse: true } }',
            r"Intel's fork that have no effect here: engine \(line 3 and 1 more\), fuse \(line 4\)$",
        ),
        (
            "default_forward_type: FLOAT16 default_forward_math: FLOAT\n" + INPUT,
            r"NVIDIA's fork that have no effect here: default_forward_type \(line 1\), "
            r"default_forward_math \(line 1\)$",
        ),
        (INPUT + "compile_net_state { is_init: true kept_bn_layers: 'a' }", r"compile_net_state"),
        (
            INPUT + "mem_param { optimize_train: true }",
            r"of the fork of TSN that have no effect here: mem_param",
        ),
        (INPUT + "richness: 1000", r"of the fork of TSN that have no effect here: richness \(line 2\)$"),
        (
            INPUT + 'layer { name: "m" type: "MemoryData" top: "m" include { phase: TEST }\n'
            'source_class: "com.yahoo.ml.caffe.LMDB" memory_data_param { source: "file:mnist_lmdb" } }',
            r"CaffeOnSpark that have no effect here: source_class \(line 3; .* a Data layer reads an "
            r"LMDB\), source \(line 3\)$",
        ),
        (
            INPUT + 'layer { name: "c" type: "Convolution" bottom: "data" top: "c"\n'
            "convolution_param { num_output: 2 engine: SPATIAL relu: false } }",
            r"the OpenCL branch that have no effect here: engine \(line 3\)$",
        ),
    ],
)
def test_what_changes_no_result_is_read_over_and_noted(read: Any, text: str, note: str) -> None:
    net = read(text).net("train")
    assert net.layers[0].name == "data"
    assert len(net.notes) == 1
    assert re.search(note, net.notes[0])


def test_a_list_of_deblurnet_that_has_no_labels_says_so(read: Any) -> None:
    text = 'layer { name: "i" type: "ImageData" top: "i" image_data_param { label: LABEL } }'
    assert read(text.replace("LABEL", "false")).net("train").notes == ()
    with pytest.raises(ModelError, match=r"label is a field of DeBlurNet's fork.*a second top"):
        read(text.replace("LABEL", "true")).net("train")


def test_layers_of_the_form_before_2014_may_have_them_too(read: Any) -> None:
    text = 'layers { name: "d" type: DUMMY_DATA top: "d" forward_type: FLOAT16 }'
    assert (
        "NVIDIA's fork that have no effect here: forward_type (line 1)"
        in read(text).net("train").notes[0]
    )


def test_a_solvers_fields_are_noted_too(read: Any, tmp_path: Path) -> None:
    read(INPUT)
    solver = read(
        SOLVER + 'solver_data_type: FLOAT16\nengine: "MKLDNN"\nlarc_turbo: false', "s.prototxt"
    ).solver()
    assert [note.partition(": ")[2] for note in solver.notes] == [
        "fields of NVIDIA's fork that have no effect here: solver_data_type (line 5)",
        "fields of Intel's fork that have no effect here: engine (line 6)",
    ]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            "larc_turbo: true",
            r"s\.prototxt:5:1: SolverParameter: larc_turbo is a field of NVIDIA's fork, not of Caffe, "
            r"and has no counterpart here: rates depend on whether gradients point where .* move$",
        ),
        ("momentum_policy: 'poly'", r"momentum_policy is a field of NVIDIA's fork, .*: the momentum ch"),
        (
            'lr_policy: "plateau"',
            r"s\.prototxt:3: lr_policy: 'plateau' is a policy of SSD's fork, where the rate .* \(valid: "
            r"exp,",
        ),
        ("kernel_shape_decay: 0.1", r"kernel_shape_decay is a field of SkimCaffe"),
    ],
)
def test_what_changes_a_solvers_results_is_refused_by_name(read: Any, field: str, message: str) -> None:
    read(INPUT)
    solver = SOLVER.replace('lr_policy: "fixed"', field) if "lr_policy" in field else SOLVER + field
    with pytest.raises(ModelError, match=message) as refused:
        read(solver, "s.prototxt").solver()
    assert "did you mean" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "field", "message"),
    [
        (
            "BatchNorm",
            "batch_norm_param { use_weight_bias: true }",
            r":3:\d+: layer 'l': BatchNormParameter: use_weight_bias is a field of Intel's fork, .*: a "
            r"scale and a bias follow; add a Scale layer with bias_term$",
        ),
        ("Convolution", "convolution_param { num_output: 1 relu: true }", r"relu .* Intel's fork"),
        (
            "Data",
            "data_param { cursor: SHUFFLING }",
            r"cursor is a field of the fork of Ganin and Lempitsky, .*: samples come in an order",
        ),
        (
            "Data",
            "transform_param { noise_param { prob: 1 } }",
            r"'l': Trans.* noise_param .*SSD's fork",
        ),
        ("BatchNorm", "batch_norm_param { add_eps_before_sqrt: 0 }", r"Synopsys's fork, .* deviation"),
        ("Dropout", "dropout_param { sqrt_scale: true }", r"caffe-windows"),
        (
            "AnnotatedData",
            "annotated_data_param { train_diffcult: false }",
            r"train_diffcult is a field of MobileNet-YOLO's fork, .*: it leaves out difficult objects$",
        ),
    ],
)
def test_what_changes_a_layers_results_is_refused_by_name(
    read: Any, kind: str, field: str, message: str
) -> None:
    text = INPUT + f'layer {{ name: "l" type: "{kind}" bottom: "data" top: "l"\n{field} }}'
    with pytest.raises(ModelError, match=message):
        read(text).net("train")


@pytest.mark.parametrize("form", ["layer {{{}", "layer\n\n{{{}"])
@pytest.mark.parametrize(
    ("more", "field"),
    [
        (  # SSD's scripts change only the samples of the training layer
            "include { phase: TRAIN }",
            "transform_param { noise_param { prob: 1 } }",
        ),
        ("include { phase: TRAIN }", "transform_param { distort_param { all_effects: true } }"),
        ("exclude { phase: TEST }", "dropout_param { sqrt_scale: true }"),
        ("", "param { lr_mult: 1 regularization_type: 'L1' }"),  # SkimCaffe's, only for training
        ("", "connectivity_mode: DISCONNECTED_GRPWISE"),
    ],
)
def test_what_changes_nothing_in_a_phase_is_no_matter_there(
    read: Any, form: str, more: str, field: str
) -> None:
    about = f' name: "l" type: "Bias" bottom: "data" top: "data" {more} {field} }}'
    net = read(INPUT + form.format(about))
    assert [layer.type for layer in net.net("test").layers if layer.name != "l"] == ["Input"]
    with pytest.raises(ModelError, match=r"is a field of .*, not of Caffe, and has no counterpart"):
        net.net("train")


@pytest.mark.parametrize(
    "field",
    [
        "loss_param { label_smoothing: 0 }",
        "loss_param { label_smoothing: 0.0 }",
        "batch_norm_param { use_weight_bias: 0 }",
        "transform_param { crop_h: 0 }",
        "batch_norm_param { add_eps_before_sqrt: true }",
        "annotated_data_param { train_diffcult: true difficult_label_warmup: false }",
        "detection_output_param { nms_param { soft_nms: false theta: 0.5 } }",
    ],
)
def test_a_value_that_changes_nothing_is_taken(read: Any, field: str) -> None:
    assert read(INPUT + f'layer {{ name: "l" type: "ELU" bottom: "data" top: "l" {field} }}').net("test")


def test_in_a_net_with_unknown_types_the_error_is_about_the_type(read: Any) -> None:
    text = INPUT + (
        'layer { name: "b" type: "BatchNorm" bottom: "data" top: "b"'
        " batch_norm_param { use_weight_bias: true } }"
        'layer { name: "m" type: "ROIWarping" bottom: "b" top: "m" '
        "roi_warping_param { num: 1 } }"
    )
    net = read(text).net("train")
    assert [layer.type for layer in net.layers] == ["Input", "BatchNorm", "ROIWarping"]
    assert net.foreign == {"ROIWarping": "MNC's fork"}


def test_an_old_type_of_a_fork_is_told_as_that(read: Any) -> None:
    with pytest.raises(
        ModelError, match=r"'v' \(BOX_DATA\): .* which belongs to the fork of caffe-yolo;"
    ):
        read('layers { name: "v" type: BOX_DATA top: "v" }')
    with pytest.raises(ModelError, match=r"type 'ROIWARPING', which belongs to MNC's fork;"):
        read('layers { name: "c" type: ROIWARPING pooling_param { pool: MAX } }')


@pytest.mark.parametrize(
    ("kind", "owner"),
    [
        ("ImageGtData", "MS-CNN's fork"),
        ("DetectionLoss", "the forks of MS-CNN and caffe-yolo"),
        ("ROIWarping", "MNC's fork"),
        ("MultiStageMeanfield", "the fork of CRF-RNN"),
        ("CTCBeamSearchDecoder", "the forks with CTC"),
        ("StridedSlice", "Synopsys's fork"),
        ("Insanity", "caffe-windows"),
        ("BoxData", "the fork of caffe-yolo"),
        ("GaussianYolov3", "MobileNet-YOLO's fork"),
        ("CoSData", "CaffeOnSpark"),
        ("DenseCrf", "DeepLab's older fork"),
        ("DataHeatmap", "the fork of Pfister's heatmaps"),
    ],
)
def test_a_type_is_told_with_the_forks_that_have_it(kind: str, owner: str, read: Any) -> None:
    text = INPUT + f'layer {{ name: "n" type: "{kind}" bottom: "data" top: "n" }}'
    assert read(text).net("test").foreign == {kind: owner}


def test_another_pooling_of_regions_is_not_taken_for_the_one_here(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_text(INPUT + 'layer { name: "r" type: "ROIWarping" bottom: "data" top: "r" }')
    with (
        compose(plugins=["-tuning"]) as runtime,
        pytest.raises(ModelError, match=r"'ROIWarping': it belongs to MNC's fork and") as told,
    ):
        runtime.net(path)
    assert "ROIPooling" not in str(told.value)


def test_a_type_that_a_plugin_has_is_nobody_elses(read: Any) -> None:
    text = INPUT + 'layer { name: "n" type: "ROIWarping" bottom: "data" top: "n" }'
    kind = SimpleNamespace(name="ROIWarping", parameters={})
    assert read(text).net("test").foreign == {"ROIWarping": "MNC's fork"}
    assert read(text, types={"ROIWarping": kind}).net("test").foreign == {}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "layer.c.cudnn_math_override",
            "1",
            r"is a field of NVIDIA's fork, not of Caffe, and has no effect",
        ),
        (
            "layer.c.convolution_param.engine",
            "mkldnn",
            r"mkldnn is an engine of Intel's fork, not of Caf",
        ),
        (
            "layer.c.convolution_param",
            "{ num_output: 1 relu: true }",
            r"relu is a field of Intel's fork, not of Caffe, and has no counterpart here: a ReLU",
        ),
        ("layer.c.convolution_param", "{ num_outputs: 1 }", r"unknown field .* mean 'num_output'\?"),
        ("layer.c.convolution_param", "{ num_output: x }", r"1:\d+ : .*parse integer: x"),
        ("compile_net_state", "1", r"compile_net_state is a field of Intel's fork, not of Caffe"),
    ],
)
def test_an_override_of_a_forks_field_is_refused_by_name(
    read: Any, key: str, value: str, message: str
) -> None:
    text = INPUT + 'layer { name: "c" type: "Convolution" bottom: "data" top: "c" }'
    with pytest.raises(ModelError, match=f"override '{key}': .*{message}") as told:
        read(text).net("train", {key: value})
    assert "\n" not in str(told.value)


def test_an_override_of_a_solver_says_whose_a_field_is(read: Any) -> None:
    read(INPUT)
    with pytest.raises(
        ModelError, match=r"override 'larc_turbo': larc_turbo is a field of NVIDIA's fork, not of"
    ):
        read(SOLVER, "s.prototxt").solver({"larc_turbo": "true"})


def test_a_conversion_leaves_them_out_and_says_so(tmp_path: Path) -> None:
    source = tmp_path / "net.prototxt"
    source.write_text('engine: "MKLDNN"\n' + INPUT)
    with compose(plugins=["caffe"]) as runtime:
        record = convert_model(runtime, source, tmp_path / "new.prototxt")
    assert record["notes"] == [
        f"{source}: fields of Intel's fork that have no effect here: engine (line 1)"
    ]
    assert "engine" not in (tmp_path / "new.prototxt").read_text()


def test_no_field_of_a_fork_is_one_that_is_read_here() -> None:
    from demitasse_caffe import fork_fields

    messages = schema({})
    assert len(fork_fields._FIELDS) > 100
    for message, name in fork_fields._FIELDS:
        assert name not in messages.descriptor(message).fields_by_name, (message, name)
    assert fork_field("NetParameter", "name") is None


def test_each_field_and_type_is_told_of_one_owner() -> None:
    """What two forks share is an entry of its own, which names both."""
    from demitasse_caffe.forks import FORKS
    from demitasse_caffe.schema import CAFFE_TYPES

    fields = [(f.message, n) for fork in FORKS for f in fork.fields for n in f.names.split()]
    types = [name for fork in FORKS for name in fork.types.split()]
    assert len(fields) == len(set(fields))
    assert len(types) == len(set(types))
    assert not CAFFE_TYPES & {*types}
    assert len({fork.name for fork in FORKS}) == len(FORKS)


def test_numbers_of_lines_stay_those_of_the_file(tmp_path: Path) -> None:
    text = 'layer { name: "r" type: "ReLU" relu_param { engine: MKL2017 }\n}\nlayer { name: 1 }'
    with pytest.raises(ModelError, match=r":3:\d+: name: "):
        parse(tmp_path / "n", text, Outline(text), "NetParameter", schema({}))
