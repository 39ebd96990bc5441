"""Nets: rules by phase, level and stage; upgrades of older formats; overrides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from demitasse import ModelError
from demitasse_caffe.net import define, read_net, state_of
from demitasse_caffe.plugin import model_reader
from demitasse_caffe.schema import schema
from demitasse_caffe.upgrade import V1_TYPES

RULES = """
state { level: 2 stage: "deploy" }
layer { name: "all" type: "Silence" }
layer { name: "train" type: "Silence" include { phase: TRAIN } }
layer { name: "test" type: "Silence" include { phase: TEST } }
layer { name: "not_test" type: "Silence" exclude { phase: TEST } }
layer { name: "low" type: "Silence" include { max_level: 1 } }
layer { name: "high" type: "Silence" include { min_level: 2 max_level: 5 } }
layer { name: "deploy" type: "Silence" include { stage: "deploy" } }
layer { name: "both_stages" type: "Silence" include { stage: "deploy" stage: "other" } }
layer { name: "not_deploy" type: "Silence" include { not_stage: "deploy" } }
layer { name: "either" type: "Silence" include { phase: TRAIN level_0 } include { min_level: 2 } }
""".replace(" level_0", "")


def names(net: Any) -> list[str]:
    return [layer.name for layer in net.layers]


def test_layers_are_chosen_by_phase_level_and_stage(read: Any) -> None:
    always = ["high", "deploy", "either"]
    assert names(read(RULES).net("train")) == ["all", "train", "not_test", *always]
    assert names(read(RULES).net("test")) == ["all", "test", *always]


def test_without_a_state_the_level_is_0_and_there_is_no_stage(read: Any) -> None:
    net = read(RULES.replace('state { level: 2 stage: "deploy" }', "")).net("test")
    assert names(net) == ["all", "test", "low", "not_deploy"]


def test_include_and_exclude_together_are_an_error(read: Any) -> None:
    text = '\nlayer { name: "a" type: "Split" include { phase: TEST } exclude { phase: TEST } }'
    with pytest.raises(ModelError, match=r":2: layer 'a': has include and exclude rules"):
        read(text).net("train")


def test_a_layer_keeps_its_blobs_and_loss_weights(read: Any) -> None:
    (layer,) = (
        read(
            'layer { name: "l" type: "SoftmaxWithLoss" bottom: "a" bottom: "b" top: "c" top: "d" '
            "loss_weight: 0.3 loss_weight: 0 }"
        )
        .net("train")
        .layers
    )
    assert (layer.bottoms, layer.tops, layer.loss_weights) == (("a", "b"), ("c", "d"), (0.3, 0.0))
    assert layer.parameters.type == "SoftmaxWithLoss"


def test_a_layer_without_a_name_gets_one_from_its_place(read: Any) -> None:
    assert names(read('\n\nlayer { type: "Silence" bottom: "a" }').net("test")) == ["Silence@3"]


@pytest.mark.parametrize(
    "text",
    [
        'input: "data" input_dim: 2 input_dim: 3 input_dim: 8 input_dim: 9',
        'input: "data" input_shape { dim: 2 dim: 3 dim: 8 dim: 9 }',
        'layer { name: "input" type: "Input" top: "data" '
        "input_param { shape { dim: 2 dim: 3 dim: 8 dim: 9 } } }",
    ],
)
def test_inputs_in_all_forms_are_the_same_layer(read: Any, text: str) -> None:
    (layer,) = read(text).net("test").layers
    assert (layer.name, layer.type, layer.tops) == ("input", "Input", ("data",))
    assert list(layer.parameters.input_param.shape[0].dim) == [2, 3, 8, 9]


def test_several_inputs_share_a_layer_whose_name_is_free(read: Any) -> None:
    text = 'input: "a" input: "b" input_shape { dim: 2 } input_shape { dim: 3 dim: 4 }'
    net = read(text + '\nlayer { name: "input" type: "Concat" bottom: "a" top: "c" }').net("test")
    assert names(net) == ["input_1", "input"]
    assert net.layers[0].tops == ("a", "b")
    assert net.layers[1].location.line == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('input: "a" input_dim: 1', "1 input_dim for 1 input: each input has 4"),
        ('input: "a" input: "b" input_shape { dim: 1 }', "1 input_shape for 2 input"),
    ],
)
def test_inputs_that_do_not_fit_are_an_error(read: Any, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(text)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ('input: "a" input_shape { dim: 1 } input_shape { dim: 2 }', {"a": [1]}),
        ('input: "a" input_shape { dim: 1 } input_dim: 1', {"a": [1]}),
        ('input: "a"' + "input_dim: 3 " * 8, {"a": [3, 3, 3, 3]}),
        ("input_dim: 1 name: 'without inputs'", {}),
        (
            'input: "a" layer { name: "d" type: "Input" top: "a" input_param { shape { dim: 5 } } }',
            {"a": [5]},
        ),
    ],
)
def test_what_is_left_over_of_inputs_means_nothing_as_in_caffe(
    read: Any, text: str, shapes: dict[str, list[int]]
) -> None:
    layers = read(text).net("test").layers
    found = {layer.tops[0]: list(layer.parameters.input_param.shape[0].dim) for layer in layers}
    assert found == shapes


V1 = """
layers {
  name: "conv" type: CONVOLUTION bottom: "data" top: "conv"
  blobs_lr: 1 blobs_lr: 2 weight_decay: 1 weight_decay: 0 param: "shared" blob_share_mode: PERMISSIVE
  convolution_param { num_output: 8 kernel_size: 3 }
  include { phase: TRAIN }
}
layers {
  name: "data" type: DATA top: "data" loss_weight: 0.5
  data_param { source: "db" batch_size: 4 scale: 0.5 mirror: true crop_size: 5 mean_file: "m" }
}
"""


def test_a_v1_layer_becomes_the_present_one(read: Any) -> None:
    conv, data = read(V1).net("train").layers
    assert (conv.type, conv.location.line, conv.parameters.convolution_param.num_output) == (
        "Convolution",
        2,
        8,
    )
    weights, bias = conv.parameters.param
    assert (weights.name, weights.lr_mult, weights.decay_mult, weights.share_mode) == (
        "shared",
        1,
        1,
        1,
    )
    assert (bias.name, bias.lr_mult, bias.decay_mult) == ("", 2, 0)
    assert (data.type, data.location.line, data.loss_weights) == ("Data", 8, (0.5,))
    transform = data.parameters.transform_param
    assert (transform.scale, transform.mirror, transform.crop_size, transform.mean_file) == (
        0.5,
        True,
        5,
        "m",
    )
    assert [field.name for field, _ in data.parameters.data_param.ListFields()] == [
        "source",
        "batch_size",
    ]


@pytest.mark.parametrize(("written", "rounding"), [("true", "CEIL"), ("false", "FLOOR")])
def test_ceil_mode_of_forks_is_the_present_round_mode(read: Any, written: str, rounding: str) -> None:
    text = 'layer { name: "p" type: "Pooling" bottom: "x" top: "p" pooling_param { kernel_size: 3 '
    text = f'input: "x" input_dim: [1, 1, 9, 9] {text} ceil_mode: {written}'
    *_, layer = read(text + " } }").net("test").layers
    pooling = layer.parameters.pooling_param
    assert pooling.RoundMode.Name(pooling.round_mode) == rounding
    assert not pooling.HasField("ceil_mode")
    assert read(text + f" round_mode: {rounding} }} }}").net("test")
    bare = text.removesuffix(f"ceil_mode: {written}") + " } }"
    *_, layer = read(bare).net("test", {"layer.p.pooling_param.ceil_mode": written}).layers
    assert layer.parameters.pooling_param == pooling
    other = "FLOOR" if rounding == "CEIL" else "CEIL"
    with pytest.raises(ModelError, match=f"layer 'p': ceil_mode: {written} and round_mode: {other}"):
        read(text + f" round_mode: {other} }} }}").net("test")


def test_every_v1_type_has_a_present_name() -> None:
    enum = schema({}).descriptor("V1LayerParameter").fields_by_name["type"].enum_type
    assert set(enum.values_by_name) == set(V1_TYPES)


V0 = """
input: "data" input_dim: 1 input_dim: 3 input_dim: 8 input_dim: 8
layers { layer { name: "pad1" type: "padding" pad: 2 } bottom: "data" top: "pad1" }
layers {
  layer {
    name: "conv1" type: "conv" num_output: 4 kernelsize: 5 stride: 2 group: 1 biasterm: false
    weight_filler { type: "xavier" } blobs_lr: 1 blobs_lr: 2 weight_decay: 1 pool: AVE
  }
  bottom: "pad1" top: "conv1"
}
layers { layer { name: "relu1" type: "relu" } bottom: "conv1" top: "conv1" }
layers { layer { name: "pad2" type: "padding" pad: 1 } bottom: "conv1" top: "pad2" }
layers { layer { name: "pool1" type: "pool" pool: AVE kernelsize: 3 } bottom: "pad2" top: "pool1" }
layers { layer { name: "norm1" type: "lrn" local_size: 3 alpha: 0.1 beta: 0.5 k: 2 }
  bottom: "pool1" top: "norm1" }
layers { layer { name: "ip1" type: "innerproduct" num_output: 9 bias_filler { value: 1 } }
  bottom: "norm1" top: "ip1" }
layers { layer { name: "drop1" type: "dropout" dropout_ratio: 0.25 } bottom: "ip1" top: "ip1" }
layers { layer { name: "images" type: "images" source: "list" batchsize: 7 shuffle_images: true
  new_height: 9 new_width: 8 rand_skip: 3 scale: 0.5 meanfile: "m" cropsize: 6 mirror: true }
  top: "images" top: "label" }
layers { layer { name: "windows" type: "window_data" source: "w" batchsize: 2 det_fg_threshold: 0.6
  det_bg_threshold: 0.4 det_fg_fraction: 0.2 det_context_pad: 5 det_crop_mode: "square" } top: "w" }
layers { layer { name: "cat" type: "concat" concat_dim: 0 } bottom: "ip1" bottom: "label" top: "cat" }
"""
V2_OF_V0 = """
layer { name: "input" type: "Input" top: "data"
  input_param { shape { dim: 1 dim: 3 dim: 8 dim: 8 } } }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  param { lr_mult: 1 decay_mult: 1 } param { lr_mult: 2 }
  convolution_param { num_output: 4 bias_term: false pad: 2 kernel_size: 5 group: 1 stride: 2
    weight_filler { type: "xavier" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
  pooling_param { pool: AVE kernel_size: 3 pad: 1 } }
layer { name: "norm1" type: "LRN" bottom: "pool1" top: "norm1"
  lrn_param { local_size: 3 alpha: 0.1 beta: 0.5 k: 2 } }
layer { name: "ip1" type: "InnerProduct" bottom: "norm1" top: "ip1"
  inner_product_param { num_output: 9 bias_filler { value: 1 } } }
layer { name: "drop1" type: "Dropout" bottom: "ip1" top: "ip1"
  dropout_param { dropout_ratio: 0.25 } }
layer { name: "images" type: "ImageData" top: "images" top: "label"
  transform_param { scale: 0.5 mirror: true crop_size: 6 mean_file: "m" }
  image_data_param { source: "list" batch_size: 7 rand_skip: 3 shuffle: true new_height: 9
    new_width: 8 } }
layer { name: "windows" type: "WindowData" top: "w"
  window_data_param { source: "w" batch_size: 2 fg_threshold: 0.6 bg_threshold: 0.4
    fg_fraction: 0.2 context_pad: 5 crop_mode: "square" } }
layer { name: "cat" type: "Concat" bottom: "ip1" bottom: "label" top: "cat"
  concat_param { concat_dim: 0 } }
"""


def test_a_v0_net_becomes_the_present_one_and_padding_is_folded_away(read: Any) -> None:
    old, new = read(V0)._net, read(V2_OF_V0, "new.prototxt")._net
    assert old.message == new.message
    assert [place.line for place in old.places] == [2, 4, 11, 13, 14, 16, 18, 19, 22, 24]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ('layers { layer { name: "c1" type: "conf" } }', r":2: layer 'c1': unknown type .* 'conv'"),
        (
            'layers { layer { name: "p" type: "padding" } bottom: "x" top: "p" }\n'
            'layers { layer { name: "i" type: "innerproduct" } bottom: "p" top: "i" }',
            r":3: layer 'i' of type 'innerproduct' reads the padding layer 'p'; only conv and pool",
        ),
        (
            'layers { layer { name: "p" type: "padding" } bottom: "x" top: "p" }\n'
            'layers { layer { name: "c" type: "conv" } bottom: "p" bottom: "y" top: "c" }',
            r":3: layer 'c' and the padding layer 'p' that it reads must have one bottom each",
        ),
    ],
)
def test_v0_layers_that_make_no_sense_are_errors(read: Any, layers: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read("\n" + layers)


def test_three_multipliers_of_an_older_batch_norm_become_zero(read: Any) -> None:
    three = 'layer { name: "n" type: "BatchNorm" param { lr_mult: 1 } param { lr_mult: 2 } param { } }'
    (layer,) = read(three).net("train").layers
    assert [(spec.lr_mult, spec.decay_mult) for spec in layer.parameters.param] == [(0, 0)] * 3


def test_upgraded_nets_are_those_that_caffe_upgraded(shared: Path) -> None:
    before = shared / "prototxt_upgrade/v1_before"
    pairs = sorted(before.rglob("*.prototxt"))
    assert len(pairs) == 23
    different = []
    for path in pairs:
        after = shared / "prototxt_upgrade/v1_after_is_v2" / path.relative_to(before)
        if read_net(path, schema({})).message != read_net(after, schema({})).message:
            different.append(str(path.relative_to(before)))
    assert different == []


OVERRIDDEN = """
layer { name: "data" type: "Data" top: "data" include { phase: TRAIN }
  data_param { source: "a" batch_size: 4 } }
layer { name: "data" type: "Data" top: "data" include { phase: TEST }
  data_param { source: "b" batch_size: 4 } }
layer { name: "fc.1" type: "InnerProduct" bottom: "data" top: "y"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } param { lr_mult: 1 } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "p" }
"""


def with_override(read: Any, key: str, value: Any, phase: str = "train") -> Any:
    return {layer.name: layer.parameters for layer in read(OVERRIDDEN).net(phase, {key: value}).layers}


@pytest.mark.parametrize(
    ("key", "value", "find", "expected"),
    [
        ("layer.data.data_param.source", "digits:train", "data.data_param.source", "digits:train"),
        ("layer.data.data_param.source", '"digits:train"', "data.data_param.source", "digits:train"),
        ("layer.pool.top", "'a', b", "pool.top", ["a", "b"]),
        ("net.layer.data.data_param.batch_size", "16", "data.data_param.batch_size", 16),
        ("layer.data.data_param.shuffle", "true", "data.data_param.shuffle", True),
        ("layer.data.data_param.batch_size", 32, "data.data_param.batch_size", 32),
        ("layer.data.transform_param.scale", "0.5", "data.transform_param.scale", 0.5),
        ("layer.fc.1.inner_product_param.num_output", 7, "fc.1.inner_product_param.num_output", 7),
        ("layer.fc.1.param.0.lr_mult", "4", "fc.1.param.0.lr_mult", 4),
        ("layer.fc.1.param.1.lr_mult", "4", "fc.1.param.1.lr_mult", 4),
        ("layer.pool.pooling_param.pool", "ave", "pool.pooling_param.pool", 1),
        ("layer.pool.top", "a,b", "pool.top", ["a", "b"]),
        (
            "layer.fc.1.inner_product_param.weight_filler",
            "{ type: 'gaussian' }",
            "fc.1.inner_product_param.weight_filler.type",
            "gaussian",
        ),
    ],
)
def test_an_override_sets_a_field(read: Any, key: str, value: Any, find: str, expected: Any) -> None:
    layers = with_override(read, key, value)
    name = "fc.1" if find.startswith("fc.1") else find.partition(".")[0]
    found = layers[name]
    for part in find[len(name) + 1 :].split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    assert (list(found) if isinstance(expected, list) else found) == expected


def test_an_override_of_one_phase_leaves_the_other(read: Any) -> None:
    def source(phase: str) -> Any:
        return with_override(read, "test_net.layer.data.data_param.source", "c", phase)["data"]

    assert source("test").data_param.source == "c"
    assert source("train").data_param.source == "a"


def test_an_override_does_not_change_the_file_for_the_next(read: Any) -> None:
    reader = read(OVERRIDDEN)
    reader.net("train", {"layer.data.data_param.source": "other"})
    assert reader.net("train").layers[0].parameters.data_param.source == "a"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("layer.dtaa.data_param.source", "x", r"unknown layer 'dtaa'; did you mean 'data'\?"),
        ("layer.data", "x", r"names a layer but none of its fields: set layer\.data\.FIELD"),
        ("layer.data.data_parm.source", "x", r"field of LayerParameter 'data_parm'; .*'data_param'"),
        ("layer.data.data_param.surce", "x", r"field of DataParameter 'surce'; did you mean 'source'"),
        ("layer.data.data_param.batch_size", "many", r"'many' is not a whole number that batch_size"),
        ("layer.data.data_param.batch_size", 1.5, r"1\.5 is not a whole number"),
        ("layer.data.data_param.batch_size", -1, r"-1 is not a whole number"),
        ("layer.data.data_param.batch_size", 1 << 40, r"is not a whole number"),
        ("layer.data.data_param.shuffle", "maybe", r"'maybe' is not true or false"),
        ("layer.data.data_param.backend", "LMDBB", r"unknown value 'LMDBB'; did you mean 'LMDB'"),
        ("layer.data.transform_param.scale", "big", r"'big' is not a number"),
        ("layer.data.data_param", "x", r"data_param is a message: set one of its fields \(source"),
        ("layer.data.name.x", "x", r"name is a value and has no field 'x'"),
        ("layer.fc.1.param.lr_mult", "x", r"param is a list of 1; param\.0 is the first one"),
        ("layer.fc.1.param.7.lr_mult", "x", r"param is a list of 1"),
        ("layer.data.data_param.source", "", r"the value is empty; source names a file"),
        ("layer.data.data_param.source", "\udcff", r"'\\udcff' is not text in UTF-8"),
        ("layer.data.transform_param.mean_file", "", r"the value is empty; mean_file names a file"),
        ("nmae", "x", r"unknown field of NetParameter 'nmae'; did you mean 'name'"),
    ],
)
def test_an_override_that_cannot_be_names_its_key(read: Any, key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        with_override(read, key, value)
    assert f"net.prototxt: override {key!r}: " in str(error.value)


# Files that Caffe does not read, with the error for each.
REFUSED = {
    "HolmesShuan+ResNet-18-Caffemodel-on-ImageNet/solver.prototxt": ":15:14: device_id: '1' is no",
    "chuanqi305+MobileNet-SSD/create_lmdb/code/labelmap.prototxt": ":1: neither a net",
    "chuanqi305+MobileNet-SSD/template/MobileNetSSD_deploy_template.prototxt": "integer: cls3x",
    "chuanqi305+MobileNet-SSD/template/MobileNetSSD_test_template.prototxt": "integer: cls3x",
    "chuanqi305+MobileNet-SSD/template/MobileNetSSD_train_template.prototxt": "_new': num_output: ",
    "lim0606+caffe-googlenet-bn/deploy.prototxt": ":3106:3: layer 'prob' (Softmax): unknown V1",
    "mqingkui+vgg-prototxt/VGG_19_layers_train_val.prototxt": ":1:1: ",
    "seanlol2012+caffe_DL/vgg_deploy.prototxt": ":4:3: layer 'data' (Input): unknown V1 layer",
}


def test_every_real_net_and_solver_is_read_or_refused_with_the_place(shared: Path) -> None:
    root = shared / "prototxt"
    paths = sorted(root.rglob("*.prototxt")) + sorted((shared / "caffemodel").rglob("*.prototxt"))
    assert len(paths) > 180
    refused = {}
    for path in paths:
        try:
            reader = model_reader(path, {})
        except ModelError as error:
            refused[str(path.relative_to(root))] = str(error)
        else:
            assert reader is not None
            if type(reader).__name__ == "NetReader":
                layers = [*reader.net("train").layers, *reader.net("test").layers]
                text = path.read_text(encoding="latin-1").split("\n")
                assert layers
                for layer in layers:
                    word = re.search(r"\b(layers?|input)\b", text[(layer.location.line or 0) - 1])
                    assert word, (path, layer.name)
    assert set(refused) == set(REFUSED)
    for name, message in refused.items():
        assert REFUSED[name] in message, message


def test_a_phase_of_a_state_is_that_of_the_net(read: Any) -> None:
    messages = schema({})
    net = read('state { stage: "x" } layer { name: "a" type: "Split" }')._net
    later = messages.message("NetState")
    later.stage.append("y")
    state = state_of(net, "test", messages, later)
    assert (state.phase, list(state.stage)) == (1, ["x", "y"])
    assert define(net, state, messages).phase == "test"
