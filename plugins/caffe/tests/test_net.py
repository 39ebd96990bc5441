"""Nets: rules by phase, level and stage; older forms upgraded; overrides."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from demitasse import ModelError
from demitasse_caffe.net import NetFile, define, read_net, state_of
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
        ('input: "a" input_shape { dim: 1 } input_shape { dim: 1 }', "2 input_shape for 1 input"),
        ('input: "a" input_shape { dim: 1 } input_dim: 1', "both input_shape and the older"),
        ("input_dim: 1", "need an 'input'"),
    ],
)
def test_inputs_that_do_not_fit_are_an_error(read: Any, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(text)


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


def test_every_v1_type_has_a_present_name() -> None:
    enum = schema({}).descriptor("V1LayerParameter").fields_by_name["type"].enum_type
    assert set(enum.values_by_name) == set(V1_TYPES)


def test_a_v0_layer_is_refused_by_name(read: Any) -> None:
    text = '\nlayers { layer { name: "c1" type: "conv" num_output: 3 } bottom: "x" top: "y" }'
    with pytest.raises(ModelError, match=r":2: layer 'c1' is in the V0 form of 2013"):
        read(text)


def canonical(path: Path) -> list[str]:
    """The layers of all phases of a file, each as text, without what the two forms may differ in."""
    net: NetFile = read_net(path, schema({}))
    texts = []
    for layer in net.message.layer:
        if layer.type == "Input":
            layer.name = ""
        texts.append(str(layer))
    return texts


def test_upgraded_nets_are_those_that_caffe_upgraded(shared: Path) -> None:
    before = shared / "prototxt_upgrade/v1_before"
    pairs = sorted(before.rglob("*.prototxt"))
    assert len(pairs) == 23
    different = []
    for path in pairs:
        after = shared / "prototxt_upgrade/v1_after_is_v2" / path.relative_to(before)
        if canonical(path) != canonical(after):
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
        ("nmae", "x", r"unknown field of NetParameter 'nmae'; did you mean 'name'"),
    ],
)
def test_an_override_that_cannot_be_names_its_key(read: Any, key: str, value: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as error:
        with_override(read, key, value)
    assert f"net.prototxt: override {key!r}: " in str(error.value)


# Files that are not what Caffe reads, with what is said of each.
REFUSED = {
    "BVLC+caffe@history/4e2328ca/data/lenet.prototxt": ":2: layer 'mnist' is in the V0 form",
    "BVLC+caffe@history/4e2328ca/data/lenet_test.prototxt": ":2: layer 'mnist' is in the V0 form",
    "BVLC+caffe@history/595afdbf/examples/cifar/cifar10_18pct_train.prototxt": "the V0 form",
    "BVLC+caffe@history/f4d65f44/examples/cifar/cifar10_80sec_train.prototxt": "the V0 form",
    "HolmesShuan+ResNet-18-Caffemodel-on-ImageNet/solver.prototxt": ":15:14: device_id: '1' is no",
    "TimoSaemann+ENet/prototxts/enet_train_encoder.prototxt": "field 'weight_by_label_freqs'",
    "TimoSaemann+ENet/prototxts/enet_train_encoder_decoder.prototxt": "'weight_by_label_freqs'",
    "amirgholami+SqueezeNext/1.0-G-SqNxt-23/solver.prototxt": ":17:1: SolverParameter: unknown",
    "amirgholami+SqueezeNext/1.0-SqNxt-23v5/solver.prototxt": "unknown field 'warmup_iter'",
    "chuanqi305+MobileNet-SSD/create_lmdb/code/labelmap.prototxt": ":1: neither a net",
    "chuanqi305+MobileNet-SSD/solver_test.prototxt": ":22:1: SolverParameter: unknown field 'eval",
    "chuanqi305+MobileNet-SSD/solver_train.prototxt": "unknown field 'eval_type'",
    "chuanqi305+MobileNet-SSD/template/MobileNetSSD_deploy_template.prototxt": "integer: cls3x",
    "chuanqi305+MobileNet-SSD/template/MobileNetSSD_test_template.prototxt": "integer: cls3x",
    "chuanqi305+MobileNet-SSD/template/MobileNetSSD_train_template.prototxt": ":2527:17: num_output",
    "chuanqi305+MobileNet-SSD/voc/solver.prototxt": "unknown field 'eval_type'",
    "eric612+MnasNet-caffe/yolov3/solver.prototxt": ":19:1: SolverParameter: unknown field 'stagelr'",
    "lim0606+caffe-googlenet-bn/deploy.prototxt": ":3106:3: unknown value of type 'Softmax'",
    "mqingkui+vgg-prototxt/VGG_19_layers_train_val.prototxt": ":1:1: ",
    "rbgirshick+py-faster-rcnn/models/pascal_voc/ZF/fast_rcnn/test.prototxt": "'scale_train'",
    "rbgirshick+py-faster-rcnn/models/pascal_voc/ZF/fast_rcnn/train.prototxt": "'scale_train'",
    "rbgirshick+py-faster-rcnn/models/pascal_voc/ZF/faster_rcnn_end2end/test.prototxt": ":318:5",
    "rbgirshick+py-faster-rcnn/models/pascal_voc/ZF/faster_rcnn_end2end/train.prototxt": ":406:5",
    "seanlol2012+caffe_DL/vgg_deploy.prototxt": ":4:3: unknown value of type 'Input'",
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
