"""The schema is Caffe's, lives in its own pools, and is extended by what layer types declare."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from demitasse import ModelError, PluginError
from demitasse_caffe.schema import number, parameter_field, schema

FIELD = re.compile(r"^ *(optional|repeated|required) (\S+) (\w+) = (\d+)(?: \[(.*)\])?;")


def written_fields() -> set[tuple[str, str, str, str, int]]:
    """Return (message, label, type, name, number) for every field in the text of the schema."""
    found, stack = set(), []
    for line in files("demitasse_caffe").joinpath("caffe.proto").read_text().splitlines():
        if opened := re.match(r" *(message|enum) (\w+) \{", line):
            stack.append(opened[2])
        elif line.strip() == "}":
            stack.pop()
        elif field := FIELD.match(line):
            found.add((stack[-1], field[1], field[2].rpartition(".")[2], field[3], int(field[4])))
    return found


def compiled_fields() -> set[tuple[str, str, str, str, int]]:
    data = files("demitasse_caffe").joinpath("caffe.binpb").read_bytes()
    file = descriptor_pb2.FileDescriptorSet.FromString(data).file[0]
    proto = descriptor_pb2.FieldDescriptorProto
    return {
        (
            message.name,
            proto.Label.Name(field.label).removeprefix("LABEL_").lower(),
            field.type_name.rpartition(".")[2]
            or proto.Type.Name(field.type).removeprefix("TYPE_").lower(),
            field.name,
            field.number,
        )
        for message in file.message_type
        for field in message.field
    }


def test_the_compiled_schema_is_that_of_the_text() -> None:
    assert len(written_fields()) > 300
    assert written_fields() == compiled_fields()


@pytest.mark.parametrize(
    ("message", "field", "expected"),
    [
        ("NetParameter", "layer", 100),
        ("NetParameter", "layers", 2),
        ("LayerParameter", "blobs", 7),
        ("LayerParameter", "convolution_param", 106),
        ("LayerParameter", "swish_param", 147),
        ("V1LayerParameter", "blobs", 6),
        ("V1LayerParameter", "type", 5),
        ("V0LayerParameter", "blobs", 50),
        ("BlobProto", "data", 5),
        ("BlobProto", "double_data", 8),
        ("SolverParameter", "type", 40),
        ("SolverState", "history", 3),
        ("ConvolutionParameter", "dilation", 18),
        ("Datum", "encoded", 7),
    ],
)
def test_field_numbers_are_those_of_the_format(message: str, field: str, expected: int) -> None:
    assert schema({}).descriptor(message).fields_by_name[field].number == expected


FOREIGN = """
from google.protobuf import descriptor_pb2, descriptor_pool
from demitasse_caffe.schema import schema, wire_classes
schema({}).message("NetParameter"), wire_classes()
file = descriptor_pb2.FileDescriptorProto(name="caffe.proto", package="caffe", syntax="proto2")
file.message_type.add(name="NetParameter").field.add(name="foreign", number=1, label=1, type=5)
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
theirs = descriptor_pool.Default().FindMessageTypeByName("caffe.NetParameter")
ours = schema({}).descriptor("NetParameter")
print(list(theirs.fields_by_name), "layer" in ours.fields_by_name)
"""


def test_a_caffe_proto_of_somebody_else_in_the_same_process_is_left_alone() -> None:
    done = subprocess.run([sys.executable, "-c", FOREIGN], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("['foreign'] True", "")


def kind(name: str, **parameters: Any) -> Any:
    return SimpleNamespace(name=name, parameters=parameters, build=None)


def layer_of(read: Any, text: str, *types: Any) -> Any:
    return read(text, types={t.name: t for t in types}).net("train").layers[0]


def test_a_third_party_type_gets_every_parameter_it_declares(read: Any) -> None:
    clamp = kind("SoftClamp", low=-1.0, high=1.0, order=2, strict=True, mode="hard", steps=[0.5])
    layer = layer_of(
        read,
        'layer { name: "c" type: "SoftClamp" soft_clamp_param { high: 0.1 order: 3 mode: "soft" '
        "steps: 1 steps: 2.5 strict: false } }",
        clamp,
    )
    assert dict(layer.parameters) == {
        "low": -1.0,
        "high": 0.1,
        "order": 3,
        "strict": False,
        "mode": "soft",
        "steps": [1.0, 2.5],
    }
    with pytest.raises(TypeError):
        layer.parameters["high"] = 2


def test_a_third_party_type_without_its_message_gets_the_defaults(read: Any) -> None:
    layer = layer_of(read, 'layer { name: "c" type: "Soft" }', kind("Soft", a=1.5, b=(1, 2)))
    assert dict(layer.parameters) == {"a": 1.5, "b": (1, 2)}


def test_a_message_that_caffe_has_serves_a_third_party_type_with_what_it_lacks(read: Any) -> None:
    swish = kind("Swish", beta=1.0, cutoff=6)
    layer = layer_of(
        read, 'layer { name: "s" type: "Swish" swish_param { beta: 0.7 cutoff: 4 } }', swish
    )
    assert dict(layer.parameters) == {"beta": 0.7, "cutoff": 4}


def test_an_unknown_parameter_of_a_third_party_type_names_the_nearest(read: Any) -> None:
    with pytest.raises(ModelError, match=r"net\.prototxt:3:5: .*'hihg'; did you mean 'high'"):
        layer_of(
            read,
            'layer { name: "c" type: "SoftClamp"\n  soft_clamp_param {\n    hihg: 2 } }',
            kind("SoftClamp", high=1.0),
        )


def test_a_wrong_value_for_a_third_party_parameter_says_where(read: Any) -> None:
    with pytest.raises(ModelError, match=r"net\.prototxt:2:\d+: layer 'c': order: .*two"):
        layer_of(
            read,
            'layer { name: "c" type: "SoftClamp" soft_clamp_param {\n order: "two" } }',
            kind("SoftClamp", order=1),
        )


def test_a_field_number_depends_on_the_name_alone() -> None:
    one = schema({"Aa": kind("Aa", x=1)}).descriptor("LayerParameter").fields_by_name["aa_param"]
    two = schema({"Aa": kind("Aa", x=1, y=2), "B": kind("B", z=1)})
    other = two.descriptor("LayerParameter").fields_by_name["aa_param"]
    assert one.number == other.number >= 100_000_000
    assert one.message_type.fields_by_name["x"].number == other.message_type.fields_by_name["x"].number


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("Swish", "swish_param"),
        ("ReLU", "relu_param"),
        ("PReLU", "prelu_param"),
        ("TanH", "tanh_param"),
        ("InnerProduct", "inner_product_param"),
        ("HDF5Data", "hdf5_data_param"),
        ("ROIPooling", "roi_pooling_param"),
        ("SmoothL1Loss", "smooth_l1_loss_param"),
        ("MyReLU", "my_relu_param"),
        ("Foo2Bar", "foo2_bar_param"),
    ],
)
def test_the_field_of_a_type_is_its_name_in_snake_case(name: str, field: str) -> None:
    assert parameter_field(name, schema({}).descriptor("LayerParameter").fields_by_name) == field


@pytest.mark.parametrize("bad", [kind("X", a=None), kind("X", a={"b": 1}), kind("A B", a=1)])
def test_a_declaration_that_no_prototxt_can_hold_is_the_plugins_error(bad: Any) -> None:
    with pytest.raises(PluginError, match=r"^SimpleNamespace of types: layer type"):
        schema({bad.name: bad})


@given(st.floats(width=32, allow_nan=False))
def test_number_is_a_short_decimal_of_the_same_single(value: float) -> None:
    short = number(value)
    assert np.float32(short) == np.float32(value)
    assert len(repr(short)) <= len(repr(value))


def test_number_gives_back_what_was_written() -> None:
    assert [number(float(np.float32(x))) for x in (0.1, 0.00390625, 1e-8, 3.0)] == [
        0.1,
        0.00390625,
        1e-8,
        3.0,
    ]


def test_the_last_field_of_a_messages_type_is_caffes() -> None:
    """Copies of Caffe's own net_spec.py find the field of a layer's type in this way."""
    fields = [
        field
        for field in schema({}).descriptor("LayerParameter").fields
        if field.name.endswith("_param") and field.message_type
    ]
    caffes = {field.message_type.name: field.name for field in fields if field.number < 80_000_000}
    last = {field.message_type.name: field.name for field in fields}
    assert {kind: last[kind] for kind in caffes} == caffes
