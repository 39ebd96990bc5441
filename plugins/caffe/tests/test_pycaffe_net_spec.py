"""Nets written in Python are the messages that one would write by hand."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import text_format

import demitasse_caffe.pycaffe as caffe
from demitasse import ModelError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)
from demitasse_caffe.pycaffe import params as P  # noqa: N812
from demitasse_caffe.pycaffe import to_proto
from demitasse_caffe.pycaffe.coord_map import crop
from demitasse_caffe.pycaffe.proto import caffe_pb2


def message(text: str) -> Any:
    net = caffe_pb2.NetParameter()
    text_format.Parse(text, net)
    return net


def test_tops_are_named_by_attributes() -> None:
    n = caffe.NetSpec()
    n.data, n.label = L.Data(
        batch_size=64, backend=P.Data.LMDB, source="train_lmdb", transform_param={"scale": 0.5}, ntop=2
    )
    n.conv1 = L.Convolution(
        n.data,
        kernel_size=5,
        num_output=20,
        weight_filler={"type": "xavier"},
        param=[{"lr_mult": 1}, {"lr_mult": 2, "decay_mult": 0}],
    )
    n.pool1 = L.Pooling(n.conv1, kernel_size=2, stride=2, pool=P.Pooling.MAX)
    n.relu1 = L.ReLU(n.pool1, in_place=True)
    n["score"] = L.InnerProduct(n.relu1, inner_product_param={"num_output": 10})
    n.loss = L.SoftmaxWithLoss(n.score, n.label, loss_weight=2, include={"phase": caffe.TRAIN})
    assert n.to_proto() == message(
        """
        layer { name: "data" type: "Data" top: "data" top: "label" transform_param { scale: 0.5 }
                data_param { source: "train_lmdb" batch_size: 64 backend: LMDB } }
        layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
                param { lr_mult: 1 } param { lr_mult: 2 decay_mult: 0 }
                convolution_param { num_output: 20 kernel_size: 5 weight_filler { type: "xavier" } } }
        layer { name: "pool1" type: "Pooling" bottom: "conv1" top: "pool1"
                pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
        layer { name: "relu1" type: "ReLU" bottom: "pool1" top: "pool1" }
        layer { name: "score" type: "InnerProduct" bottom: "pool1" top: "score"
                inner_product_param { num_output: 10 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "score" bottom: "label" top: "loss"
                loss_weight: 2 include { phase: TRAIN } }
        """
    )
    assert n.keys() == ["data", "label", "conv1", "pool1", "relu1", "score", "loss"]
    assert len(n.vals()) == 7
    del n.loss, n["score"]
    assert n.keys()[-1] == "relu1"
    with pytest.raises(AttributeError, match=r"unknown top 'pool'; did you mean 'pool1'"):
        _ = n.pool


def test_what_has_no_name_is_named_by_type_and_number() -> None:
    data = L.Input(shape={"dim": [1, 2]})
    hidden = L.ReLU(L.InnerProduct(data, num_output=3))
    net = to_proto(L.InnerProduct(hidden, num_output=4), hidden)
    assert [(layer.name, list(layer.bottom), list(layer.top)) for layer in net.layer] == [
        ("Input1", [], ["Input1"]),
        ("InnerProduct1", ["Input1"], ["InnerProduct1"]),
        ("ReLU1", ["InnerProduct1"], ["ReLU1"]),
        ("InnerProduct2", ["ReLU1"], ["InnerProduct2"]),
    ]


def test_names_are_given_last_as_before_netspec() -> None:
    data, label = L.DummyData(ntop=2)
    fc = L.InnerProduct(data, num_output=2)
    loss = L.SoftmaxWithLoss(L.ReLU(fc, in_place=True), label)
    names = {value: name for name, value in {**locals(), "source": "some_lmdb"}.items()}
    net = to_proto(loss, names)
    assert [layer.name for layer in net.layer] == ["data", "fc", "ReLU1", "loss"]
    assert [list(layer.top) for layer in net.layer] == [["data", "label"], ["fc"], ["fc"], ["loss"]]


def test_layers_without_tops_and_names_that_are_given() -> None:
    n = caffe.NetSpec()
    n.data = L.DummyData(shape=[{"dim": [2, 3]}], name="source")
    n.silence = L.Silence(n.data, ntop=0)
    assert n.to_proto() == message(
        """
        layer { name: "source" type: "DummyData" top: "data"
                dummy_data_param { shape { dim: 2 dim: 3 } } }
        layer { name: "silence" type: "Silence" bottom: "data" }
        """
    )


def test_a_deep_net_is_no_deeper_recursion() -> None:
    top = L.Input(shape={"dim": [1]})
    for _ in range(5000):
        top = L.ReLU(top)
    assert len(to_proto(top).layer) == 5001


def test_parameters_are_numbers_texts_and_enumerations() -> None:
    assert P.Pooling.AVE == 1
    assert P.Eltwise.SUM == 1
    by_text = to_proto(L.Pooling(L.Input(), pool="AVE", kernel_size=2))
    assert by_text.layer[1].pooling_param.pool == P.Pooling.AVE


def test_parameters_are_added_and_changed_until_a_net_is_written() -> None:
    """SSD's scripts make a PriorBox, and then set parameters that only some of them have."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 3, 8, 8]})
    n.box = L.PriorBox(n.data, n.data, min_size=30.0, clip=True)
    n.update("box", {"max_size": 60.0, "clip": False})
    box = n.to_proto().layer[1].prior_box_param
    assert (list(box.min_size), list(box.max_size), box.clip) == ([30], [60], False)
    with pytest.raises(AttributeError, match=r"unknown top 'bax'; did you mean 'box'"):
        n.update("bax", {})


def test_what_ssds_scripts_write(caplog: pytest.LogCaptureFixture) -> None:
    """Normalize's parameters are in norm_param. A quotient of integers is an integer in Python 2, in
    which the scripts are written. Where and how detections are saved does not change results."""
    data = L.Input(shape={"dim": [1, 3, 8, 8]})
    norm = L.Normalize(data, scale_filler={"type": "constant", "value": 20}, channel_shared=False)
    conv = L.Convolution(norm, num_output=4, kernel_size=3, pad=(3 - 1) / 2)
    net = to_proto(conv)
    assert net.layer[1].norm_param.scale_filler.value == 20
    assert list(net.layer[2].convolution_param.pad) == [1]
    with pytest.raises(ModelError, match=r"ConvolutionParameter.pad cannot be 0.5"):
        to_proto(L.Convolution(data, num_output=4, kernel_size=2, pad=(2 - 1) / 2))
    found = {"num_classes": 21, "save_output_param": {"output_directory": "somewhere"}}
    with caplog.at_level("INFO", "demitasse.pycaffe"):
        net = to_proto(L.DetectionOutput(data, data, data, detection_output_param=found))
    assert net.layer[-1].detection_output_param.num_classes == 21
    assert "save_output_param is a field of SSD" in caplog.text
    with pytest.raises(ModelError, match=r"coeff is a field of .*the sum with another layer follows"):
        to_proto(L.Convolution(data, num_output=4, kernel_size=1, convolution_param={"coeff": 2}))


def test_ssds_label_maps_and_annotated_samples() -> None:
    """ssd_detect.py reads label maps, and scripts write annotated samples to databases. The bytes are
    worked out by hand."""
    labels = caffe_pb2.LabelMap()
    text_format.Merge("item { name: 'n1' label: 3 display_name: 'cat' }", labels)
    assert [(item.label, item.display_name) for item in labels.item] == [(3, "cat")]
    sample = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
    sample.datum.label = 7
    group = sample.annotation_group.add(group_label=3)
    group.annotation.add(instance_id=1).bbox.xmax = 0.5
    box = b"\x1d\x00\x00\x00\x3f"
    annotation = b"\x08\x01\x12" + bytes([len(box)]) + box
    inner = b"\x08\x03\x12" + bytes([len(annotation)]) + annotation
    written = b"\x0a\x02\x28\x07\x10\x00\x1a" + bytes([len(inner)]) + inner
    assert sample.SerializeToString() == written


def test_a_device_is_one_number_as_scripts_set_it() -> None:
    solver = caffe_pb2.SolverParameter(device_id=3)
    solver.device_id = 2
    assert str(solver) == "device_id: 2\n"


def test_mistakes_are_said() -> None:
    data = L.Input(shape={"dim": [1]})
    with pytest.raises(ModelError, match=r"unknown parameter 'num_outputs'; did you mean 'num_output'"):
        to_proto(L.InnerProduct(data, num_outputs=3))
    with pytest.raises(ModelError, match=r"ConvolutionParameter.num_output cannot be 'many'"):
        to_proto(L.Convolution(data, num_output="many"))
    with pytest.raises(ModelError, match=r"unknown field of FillerParameter 'typ'"):
        to_proto(L.InnerProduct(data, num_output=1, weight_filler={"typ": "xavier"}))
    with pytest.raises(ModelError, match=r"unknown value of pool 'MEAN'"):
        to_proto(L.Pooling(data, pool="MEAN"))
    with pytest.raises(TypeError, match="ReLU input 0 is not a Top"):
        L.ReLU("data")
    with pytest.raises(ValueError, match="in place it must have as many tops as inputs: 2"):
        L.Eltwise(data, data, in_place=True)


def test_messages_and_enumerations_are_found_by_name() -> None:
    assert (caffe_pb2.TRAIN, caffe_pb2.TEST) == (caffe.TRAIN, caffe.TEST) == (0, 1)
    assert caffe_pb2.Phase.Name(1) == "TEST"
    assert caffe.proto.caffe_pb2 is caffe_pb2
    solver = caffe_pb2.SolverParameter()
    solver.solver_mode = caffe_pb2.SolverParameter.GPU
    text_format.Merge('net: "x.prototxt" test_iter: 3', solver)
    assert (solver.net, list(solver.test_iter)) == ("x.prototxt", [3])
    assert type(caffe_pb2.NetParameter()) is type(caffe_pb2.NetParameter())
    assert caffe_pb2.LayerParameter.DESCRIPTOR is caffe_pb2._LAYERPARAMETER
    method = caffe_pb2._POOLINGPARAMETER_POOLMETHOD
    assert method.values_by_name["AVE"].number == caffe_pb2.PoolingParameter.AVE
    everything: dict[str, Any] = {}
    exec("from demitasse_caffe.pycaffe.proto.caffe_pb2 import *", everything)
    assert everything["NetParameter"] is caffe_pb2.NetParameter
    assert (everything["TRAIN"], everything["TEST"]) == (0, 1)
    assert "BlobProto" in dir(caffe_pb2)
    with pytest.raises(AttributeError, match="caffe_pb2 has no 'NetParameters'"):
        _ = caffe_pb2.NetParameters


# Crops.


def offset(top: Any) -> list[int]:
    return list(to_proto(top).layer[-1].crop_param.offset)


def test_a_crop_aligns_what_a_convolution_has_made_smaller() -> None:
    data = L.Input(shape={"dim": [1, 3, 20, 20]})
    assert offset(crop(data, L.Convolution(data, kernel_size=5))) == [2]
    assert offset(crop(data, L.ReLU(L.Convolution(data, kernel_size=3, dilation=2)))) == [2]
    assert offset(crop(data, L.Convolution(data, kernel_h=3, kernel_w=5, pad_h=1, pad_w=0))) == [0, 2]
    twice = L.Pooling(L.Convolution(data, kernel_size=3), kernel_size=3, stride=1)
    assert offset(crop(data, twice)) == [2]


def test_a_crop_of_an_upsampled_score() -> None:
    """As in fully convolutional nets: padded by 100, pooled three times, upsampled by 8."""
    data = L.Input(shape={"dim": [1, 3, 20, 20]})
    top = L.Convolution(data, kernel_size=3, pad=100)
    for _ in range(3):
        top = L.Pooling(L.ReLU(top), kernel_size=2, stride=2)
    score = L.Deconvolution(top, convolution_param={"kernel_size": [16], "stride": [8]})
    made = crop(score, data)
    # A pixel x becomes x + 99, then (x + 99 - 3.5) / 8, and then 8 times that plus 7.5.
    assert offset(made) == [103]
    assert to_proto(made).layer[-1].crop_param.axis == 2
    assert offset(crop(made, L.Crop(made, data, axis=2, offset=[4]))) == [4]


def test_the_crop_of_a_published_net_is_what_its_file_says() -> None:
    """FCN-32s on VGG-16: its train.prototxt has an offset of 19."""
    data = top = L.Input(shape={"dim": [1, 3, 500, 500]})
    for stage, depth in enumerate((2, 2, 3, 3, 3)):
        for number in range(depth):
            pad = 100 if stage == number == 0 else 1
            top = L.ReLU(L.Convolution(top, kernel_size=3, pad=pad, num_output=8), in_place=True)
        top = L.Pooling(top, kernel_size=2, stride=2)
    top = L.Dropout(L.Convolution(top, kernel_size=7, pad=0, num_output=8), in_place=True)
    score = L.Convolution(top, kernel_size=1, pad=0, num_output=21)
    upsampled = L.Deconvolution(score, kernel_size=64, stride=32)
    assert offset(crop(upsampled, data)) == [19]


def test_what_cannot_be_cropped() -> None:
    data = L.Input(shape={"dim": [1, 3, 20, 20]})
    with pytest.raises(AssertionError, match=r"pixels are \[0.5\] times as far apart") as raised:
        crop(data, L.Pooling(data, kernel_size=2, stride=2))
    assert isinstance(raised.value, ModelError), "beside the kind that scripts catch"
    with pytest.raises(AssertionError, match=r"the offset is \[0.5\], not whole pixels"):
        crop(data, L.Convolution(data, kernel_size=2))
    with pytest.raises(ModelError, match=r"the offset is \[-1.0\], not whole pixels"):
        crop(data, L.Convolution(data, kernel_size=1, pad=1))
    with pytest.raises(RuntimeError, match="do not come from a common one"):
        crop(data, L.Input(shape={"dim": [1]}))
    with pytest.raises(ModelError, match="do not come from a common one"):
        crop(data, L.InnerProduct(data, num_output=3))
