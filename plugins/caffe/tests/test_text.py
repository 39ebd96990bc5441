"""Prototxt text: errors have file, line, column and the nearest name."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demitasse import DemitasseError, ModelError
from demitasse_caffe.outline import Outline
from demitasse_caffe.plugin import model_reader
from demitasse_caffe.schema import schema
from demitasse_caffe.text import parse

NET = """name: "small"  # a comment with a { brace
layer {
  name: "data" type: "Input" top: "data"
  input_param { shape { dim: 2 dim: 3 dim: 8 dim: 8 } }
}
layer <
  name: 'ip' type: 'InnerProduct' bottom: 'data' top: 'ip';
  inner_product_param: { num_output: 4, weight_filler { type: "xavier" } }
>
"""
SOLVER = """net: "net.prototxt"
base_lr: 0.1
lr_policy: "fixed"
max_iter: 10
"""


def test_layers_know_their_lines(read: Any) -> None:
    layers = read(NET).net("train").layers
    assert [layer.location.line for layer in layers] == [2, 6]
    assert str(layers[1].location).endswith("net.prototxt:6")


def test_layers_in_a_list_know_their_lines(read: Any) -> None:
    text = 'layer: [\n{ name: "a" type: "Input" },\n\n{ name: "b" type: "Input" }\n]\nname: "x"'
    net = read(text).net("train")
    assert [(layer.name, layer.location.line) for layer in net.layers] == [("a", 2), ("b", 4)]
    assert net.name == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'layer {\n  name: "c"\n  convolution_param { num_ouput: 3 }\n}',
            r"net\.prototxt:3:23: layer 'c': ConvolutionParameter: unknown field 'num_ouput'; "
            r"did you mean 'num_output'\?",
        ),
        ('layer {\n  nane: "c"\n}', r":2:3: LayerParameter: unknown field 'nane'; .*'name'"),
        ('name: "x"\nlayr { }', r":2:1: NetParameter: unknown field 'layr'; did you mean 'layer'"),
        (
            'layer { type: "Convolution" convolution_param {\n num_output: "many" } }',
            r":2:14: num_output: .*many",
        ),
        (
            'layer { type: "Convolution" convolution_param {\n num_output: -1 } }',
            r":2:14: num_output: -1 is.*: 0 or",
        ),
        ("input_dim: 3000000000", r":1:12: input_dim: 3000000000 is out of range .*nearer to 0\)$"),
        ('layer { type: "Convolution" convolution_param {\n num_output: 1.5 } }', r":2:14: num_outp"),
        (
            'layer { type: "Pooling"\n pooling_param { pool: MAXX } }',
            r":2:18: unknown value of pool 'MAXX'; did you mean 'MAX'\? \(valid: AVE, AVE_EXC_PAD",
        ),
        (
            'layer { type: "Pooling"\n pooling_param { pool: "MAX" } }',
            r":2:18: pool is written without quotes: pool: MAX",
        ),
        (
            'layers {\n type: "Softmax" }',
            r":2:2: layer '' \(Softmax\): unknown V1 layer type 'Softmax'; did you mean 'SOFTMAX'.* "
            r"written 'layer \{'",
        ),
        (
            'layer {\n  name: "a"\nlayer {\n  name: "b"\n}\n',
            r":3:1: 'layer' inside the block 'layer \{' of line 1: is its '\}' missing\?",
        ),
        (
            'layer {\n  name: "a"\n  convolution_param {\n    num_output: 4\n',
            r":5: the file ends while 'convolution_param \{' of line 3 in 'layer \{' of line 1 is still"
            r" open: it is cut off",
        ),
        ('layer { name: "a\n}', r":1:\d+: .*"),
        ("layer { } }", r":1:11: "),
        ("name 5", r"neither a net .* nor a solver|holds no field"),
        ("", r"holds no field: neither a net nor a solver"),
        ("# only a comment\n", r"holds no field"),
        ('itme { name: "x" }', r":1: neither a net .* nor a solver .* its first field is 'itme'"),
        (
            'name: "a"\nname: "b"\nlayer { }',
            r":2:1: NetParameter: name takes one value, but is given again; it was first given in line "
            r"1$",
        ),
        (
            'name: "a"\n<<<<<<< HEAD\nforce_backward: true\n=======\n>>>>>>> 12ab\n',
            r":2: '<<<<<<<' marks two versions of the file \(a merge conflict\); choose one$",
        ),
        (
            'name: "a"\n<<<<<<< HEAD\nname: "b"\n=======\nforce_backward: false\n>>>>>>> 12ab\n',
            r":2: '<<<<<<<' marks two versions of the file \(a merge conflict\); choose one$",
        ),
        (
            'layer { name: "x"\n input_param { shape { dim: $#batch_size#$\n} } }',
            r":2:29: layer 'x': dim: Couldn't .*; '\$#batch_size#\$' is a placeholder of a template; "
            r"have its",
        ),
        (
            'layer { name: "x"\n input_param { shape { dim: {{ batch }} } } }',
            r":2:29: layer 'x': dim: .*; '\{\{ batch \}\}' is a placeholder of a template; have its "
            r"tool fill it in$",
        ),
        (
            'layers { name: "p" pooling_parm { } type: "Pooling" }',
            r"unknown field 'pooling_parm'; .*; a layer with a quoted type is written 'layer {', not",
        ),
        (
            'layers { name: "p" type: POOLING pooling_parm { } }',
            r"unknown field 'pooling_parm'; .* as Caffe's caffe\.proto lists them\)$",
        ),
        (
            'layer { name: "p"\n upsample_param { scale: 1\n scale: 2 } }',
            r":3:2: layer 'p': .* scale takes .* in line 2 \(each axis has its own in scale_h and",
        ),
        (
            'layer { name: "c"\n convolution_param { num_output: 1\n num_output: 1 } }',
            r":3:2: layer 'c': ConvolutionParameter: num_output takes one value, .* given in line 2$",
        ),
        (
            'layer { name: "c"\n type: "Convolution"\n\ntype: "ReLU" }',
            r":4:1: layer 'c': LayerParameter: type takes one value, .* given in line 2$",
        ),
        (
            'layer { name: "c" type: "ReLU"\n relu_param { }\n relu_param { } }',
            r":3:2: layer 'c': LayerParameter: relu_param takes one value, .* given in line 2$",
        ),
        (
            'layers { name: "c" type: RELU\n relu_param { }\n relu_param { } }',
            r":3:2: layer 'c': V1LayerParameter: relu_param takes one value",
        ),
        ('layer { name: "a" } layers { name: "b" }', r":1: has both 'layers' .* in line 1, 'layer'"),
        ('name: "n" // a net', r":1:11: '//' does not begin a comment here; '#' does"),
        ('name: "n"\nlayer /* one */ { }', r":2:7: '/\*' does not begin a comment"),
        ("name: /data/net", r':1:7: name: write a string in quotes: "/data/net"$'),
        (
            'name: "n"\nlayer { name: conv1}',
            r""":2:15: name: write a string in quotes: "conv1"$""",
        ),
        (
            'layer { type: "Foo"\n foo_param { path: C:\\data\\x } }',
            r':2:21: path: write a string in quotes: "C:/data/x"$',
        ),
        (
            'layer { type: "Foo"\n foo_param { path: $Here$ } }',
            r":2:14: path: '\$Here\$' is neither a number nor a string$",
        ),
        ('name: "n"\nlayer { name:\n', r":3: the file ends"),
        ('name: "n"\nname:\n', r":\d+:\d+: "),
        ('item { name: "cat" label: 1 }', r":1: neither a net .* it lists items, as a label map"),
        ('layer { name: "a" }', r":1: layer 'a': has no type"),
    ],
)
def test_a_mistake_is_named_with_its_place(read: Any, text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(text).net("train")


def test_a_truncated_solver_says_so(read: Any) -> None:
    with pytest.raises(ModelError, match=r"s\.prototxt:3:"):
        read('net: "a"\nbase_lr: 0.1\nlr_policy: "fix', "s.prototxt")


def test_binary_data_is_told_from_text(tmp_path: Path) -> None:
    path = tmp_path / "weights.prototxt"
    path.write_bytes(b"\x0a\x05LeNet\xa2\x06\x00\x00")
    with pytest.raises(ModelError, match=r"weights\.prototxt: is not text .* end in \.caffemodel"):
        model_reader(path, {})


def test_comments_in_other_encodings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_bytes("# 网络\n".encode("gbk") + b'layer { name: "a" type: "Input" }')
    reader = model_reader(path, {})
    assert reader is not None
    assert reader.net("train").layers[0].location.line == 2


def test_a_byte_order_mark_is_no_field(tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_bytes(b"\xef\xbb\xbf" + b'name: "a" layer { name: "a" type: "Input" }')
    reader = model_reader(path, {})
    assert reader is not None
    assert reader.net("train").name == "a"


def test_a_missing_file_suggests_its_nearest_sibling(tmp_path: Path) -> None:
    (tmp_path / "lenet_solver.prototxt").touch()
    with pytest.raises(ModelError, match=r"no such file: .*lenet_sovler.*; did you mean .*_solver"):
        model_reader(tmp_path / "lenet_sovler.prototxt", {})


def test_another_pbtxt_is_left_to_another_plugin(tmp_path: Path) -> None:
    path = tmp_path / "labels.pbtxt"
    path.write_text('item { id: 1 display_name: "cat" }')
    assert model_reader(path, {}) is None


def test_fields_of_a_type_that_nobody_knows_are_left_to_the_error_about_the_type(read: Any) -> None:
    text = 'layer { name: "r" type: "PSROIPooling" bottom: "x" psroi_pooling_param { pooled_h: 6 } }'
    assert read(text).net("test").layers[0].type == "PSROIPooling"


def test_fields_of_a_fork_in_caffes_own_layers_are_told_where_no_type_is_unknown(read: Any) -> None:
    """A fork's net has both; the missing type is then the error. Another phase may consist of Caffe's
    own types."""
    fork = (
        'layer { name: "drop" type: "Dropout" dropout_param { sqrt_scale: true } }'
        'layer { name: "roi" type: "PSROIPooling" include { phase: TRAIN } psroi_param { x: 1 } }'
    )
    reader = read(fork)
    assert [layer.type for layer in reader.net("train").layers] == ["Dropout", "PSROIPooling"]
    with pytest.raises(
        ModelError, match=r":1:\d+: layer 'drop': DropoutParameter: sqrt_scale is a field of caffe-w"
    ):
        reader.net("test")
    with pytest.raises(ModelError, match="sqrt_scale is a field of caffe-windows"):
        reader.net("test", {"layer.drop.name": "other"})


def test_a_word_of_a_fork_is_told_where_no_type_is_unknown(read: Any) -> None:
    fork = (
        'layer { name: "pool" type: "Pooling" pooling_param { pool: AVE_X kernel_size: 2 } }'
        'layer { name: "roi" type: "PSROIPooling" include { phase: TRAIN } }'
    )
    reader = read(fork)
    assert [layer.type for layer in reader.net("train").layers] == ["Pooling", "PSROIPooling"]
    with pytest.raises(ModelError, match=r":1:\d+: layer 'pool': unknown value of pool 'AVE_X'"):
        reader.net("test")


def test_a_type_that_the_old_form_lacks_is_told_with_its_layer_and_how_one_is_added(read: Any) -> None:
    told = (
        r":1:20: layer 'p' \(RELU_X\): unknown V1 layer type 'RELU_X'; did you mean 'RELU'\? .* a "
        r"plugin adds with the layer_types hook, is written layer \{ type: 'ReluX' \}"
    )
    with pytest.raises(ModelError, match=told):
        read('layers { name: "p" type: RELU_X }')


@pytest.mark.parametrize(("old", "new"), [("PRELU", "PReLU"), ("BATCH_NORM", "BatchNorm")])
def test_a_type_that_is_newer_than_the_old_form_is_told_by_its_name(
    read: Any, old: str, new: str
) -> None:
    told = rf":1:20: layer 'p' \({old}\): the type {new} is newer .* layer \{{ type: '{new}' \}}"
    with pytest.raises(ModelError, match=told):
        read(f'layers {{ name: "p" type: {old} }}')


@pytest.mark.parametrize(
    ("text", "place", "hole"),
    [
        ("base_lr: {lr}", "1:10: base_lr", "{lr}"),
        ("base_lr: {}", "1:10: base_lr", "{}"),
        ("base_lr: {0:.3f}", "1:10: base_lr", "{0:.3f}"),
        ("base_lr: {rates[0]!r}", "1:10: base_lr", "{rates[0]!r}"),
        ("base_lr: %f", "1:10: base_lr", "%f"),
        ("base_lr: %(lr).3f", "1:10: base_lr", "%(lr).3f"),
        ("base_lr: $RATE", "1:10: base_lr", "$RATE"),
        ("base_lr: ${RATE}", "1:10: base_lr", "${RATE}"),
        ("net: {net}", "1:6: net", "{net}"),
        ("solver_mode: {mode}", "1:14: solver_mode", "{mode}"),
        ('layer {\n type: "Input" {shape} }', "2:16", "{shape}"),
        ('layer [ { type: "Input" {shape} } ]', "1:25", "{shape}"),
        ('layer { type: "ReLU" }\n{more}\n', "2:1", "{more}"),
        ('layer { type: "ReLU" }\n{{ more }}\n', "2:1", "{{ more }}"),
        ('{% if deep %}\nlayer { type: "ReLU" }\n', "1:1", "{% if deep %}"),
        ('layer {{ name: "a" }}\nlayer {{ name: "b" }}', "1:8", "{{"),
        ('name: "a"\nlayers {{\n name: "{name}"\n relu_param {{\n }}\n}}\n', "2:9", "{{"),
    ],
)
def test_what_a_template_leaves_open_is_told_as_that(
    text: str, place: str, hole: str, read: Any
) -> None:
    told = re.escape(f"; {hole!r} is a placeholder of a template; have its tool fill it in")
    with pytest.raises(ModelError, match=rf"net\.prototxt:{place}: [A-Z].*{told}$"):
        read(text)


@pytest.mark.parametrize("value", ["{ 1 }", "{ value: 1 }", "%"])
def test_what_is_no_templates_is_not_told_as_that(value: str, read: Any) -> None:
    with pytest.raises(ModelError, match=r":1:10: base_lr: Couldn't parse float: [{%]$"):
        read(f"base_lr: {value}")


def test_a_field_without_a_value_is_named_though_the_next_line_is_in_its_place(read: Any) -> None:
    text = "net_param {}\nmax_iter:\ndisplay: 3"
    with pytest.raises(ModelError, match=r":3:1: max_iter: Couldn't parse integer: display"):
        read(text)


def test_a_list_for_a_field_of_one_value_names_the_field(read: Any) -> None:
    with pytest.raises(ModelError, match=r":2:11: momentum takes one value, not a list"):
        read("base_lr: 0.1\nmomentum: [0, 1]")


@pytest.mark.parametrize(("written", "first"), [("[0, 1]", 0), ("[ 2,\n  3 ]", 2), ("[]", 0), ("4", 4)])
def test_of_several_devices_the_first_is_read(written: str, first: int, read: Any) -> None:
    """TSN's fork has a list of devices where Caffe has a single one; devices have no effect here."""
    text = f"base_lr: 0.1\ndevice_id: {written}\nmax_iter: 3"
    solver = parse(Path("s.prototxt"), text, Outline(text), "SolverParameter", schema({}))
    assert (solver.device_id, solver.max_iter) == (first, 3)
    line = 4 + written.count("\n")
    with pytest.raises(ModelError, match=rf":{line}:1: SolverParameter: unknown field 'max_itr'"):
        read(f"base_lr: 0.1\n\ndevice_id: {written}\nmax_itr: 3")


@pytest.mark.parametrize(
    ("written", "wrong", "told"),
    [
        ("inner_product_param { bias_term: yes }", "yes", 'bias_term: Expected "true" or "false".'),
        ("inner_product_param { num_output: 3.5 }", "3.5", "num_output: Couldn't parse integer: 3.5"),
        ("inner_product_param { num_output: [2, 3] }", "[2", "num_output takes one value, not a list"),
        ("loss_weight: big", "big", "loss_weight: Couldn't parse float: big"),
        ("inner_product_param: 3", "3", 'inner_product_param: Expected "{".'),
    ],
)
def test_a_value_of_another_kind_in_a_layer_names_the_layer(
    written: str, wrong: str, told: str, read: Any
) -> None:
    line = f'layer {{ name: "ip" type: "InnerProduct" {written} }}'
    with pytest.raises(ModelError) as caught:
        read('name: "n"\n' + line)
    column = line.index(wrong) + 1
    assert str(caught.value).endswith(f"net.prototxt:2:{column}: layer 'ip': {told}")


def test_a_wrong_field_or_value_in_a_layer_names_the_layer(read: Any) -> None:
    text = 'layer {{ name: "l" type: "SoftmaxWithLoss" loss_param {{ {} }} }}'
    with pytest.raises(ModelError, match=r": layer 'l': unknown value of normalization 'PRE'"):
        read(text.format("normalization: PRE"))
    with pytest.raises(ModelError, match=r": layer 'l': LossParameter: unknown field 'normal'"):
        read(text.format("normal: 1"))


def test_a_net_is_no_solver_and_a_solver_no_net(read: Any) -> None:
    with pytest.raises(ModelError, match="is a net; a solver is needed"):
        read(NET).solver()
    with pytest.raises(ModelError, match="is a net; weights are in a"):
        read(NET).weights()
    with pytest.raises(ModelError, match=r"s\.prototxt: is a solver; weights"):
        read(SOLVER, "s.prototxt").weights()
    read(SOLVER.replace("net.prototxt", "other.prototxt"), "other.prototxt")
    read(SOLVER.replace("net.prototxt", "other.prototxt"), "s.prototxt")
    with pytest.raises(ModelError, match=r"other\.prototxt: is a solver; a net is needed here"):
        read(SOLVER.replace("net.prototxt", "other.prototxt"), "s.prototxt").solver()


def test_a_phase_that_is_none_is_an_error(read: Any) -> None:
    with pytest.raises(ModelError, match=r"unknown phase 'validation' \(valid: train, test\)"):
        read(NET).net("validation")


@given(st.text(max_size=200))
def test_any_text_can_be_outlined(text: str) -> None:
    outline = Outline(text)
    lines = text.count("\n") + 1
    assert all(1 <= entry.line <= lines for entry in outline.entries)


def attempt(path: Path, data: bytes) -> None:
    """Whatever a file contains, reading it either works or raises a user's error."""
    path.write_bytes(data)
    try:
        reader = model_reader(path, {})
        if reader is not None:
            reader.net("train")
            reader.solver()
    except DemitasseError as error:
        assert str(path) in str(error) or "no such file" in str(error)


WORDS = r"""layer layers { } < > [ ] : , " ' name "x" type bottom net base_lr 1 -1 1e400 nan \\ # é
test_iter input input_dim param blobs data convolution_param kernel_size DATA ~/x"""


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*WORDS.split(), "\n", "\0"]), max_size=30))
def test_any_words_give_a_net_or_a_users_error(tmp_path: Path, words: list[str]) -> None:
    attempt(tmp_path / "any.prototxt", " ".join(words).encode())


@pytest.mark.parametrize("name", ["lenet_train_test", "lenet_solver", "mnist_autoencoder"])
def test_a_damaged_real_file_gives_a_net_or_a_users_error(
    shared: Path, tmp_path: Path, name: str
) -> None:
    original = (shared / f"prototxt/BVLC+caffe/examples/mnist/{name}.prototxt").read_bytes()
    dice = random.Random(name)
    for _ in range(150):
        data = bytearray(original)
        for _ in range(dice.randint(1, 4)):
            start = dice.randrange(len(data))
            match dice.randrange(4):
                case 0:
                    data[start] = dice.randrange(256)
                case 1:
                    del data[start : start + dice.randint(1, 40)]
                case 2:
                    data[start:start] = data[start : start + dice.randint(1, 40)]
                case 3:
                    del data[start:]
            data = data or bytearray(b"\n")
        attempt(tmp_path / "damaged.prototxt", bytes(data))


def test_an_escape_that_is_none_is_an_error(read: Any) -> None:
    with pytest.raises(
        ModelError, match=r"net\.prototxt:2: a quoted string has an unknown escape: '\\l'"
    ):
        read('name: "net"\n' + r'layer { name: "a\lb" type: "Split" }')


@pytest.mark.parametrize("form", ["utf-16", "utf-16-be"])
def test_text_in_another_unicode_form_is_named(form: str, tmp_path: Path) -> None:
    path = tmp_path / "net.prototxt"
    path.write_bytes(("\ufeff" if form.endswith("be") else "").encode(form) + NET.encode(form))
    with pytest.raises(ModelError, match=r"net\.prototxt: is text in UTF-16; save it as UTF-8"):
        model_reader(path, {})


def test_values_of_words_may_be_numbers_and_a_wrong_number_is_told_with_the_valid_ones(
    read: Any,
) -> None:
    text = 'layer {{ name: "p" type: "Pooling" bottom: "x" top: "y" pooling_param {{ pool: {} }} }}'
    (layer,) = read(text.format(1)).net("test").layers
    assert layer.parameters.pooling_param.pool == layer.parameters.pooling_param.AVE
    with pytest.raises(
        ModelError, match=r":1:72: layer 'p': pool has no value 7 \(valid: MAX \(0\), AVE \(1\)"
    ):
        read(text.format(7))


def test_the_field_before_the_mistake_is_named_on_a_long_line(read: Any) -> None:
    text = 'layer { type: "InnerProduct" inner_product_param { num_output: many } name: "x" top: "y" }'
    with pytest.raises(ModelError, match=r"net\.prototxt:1:64: layer 'x': num_output: .*many"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        "layer { " * 5000,
        'layer { type: "X" x_param ' + "{ a " * 5000 + "}" * 5001,
        'layer { type: "X" x_param { a: ' + "[" * 5000 + "]" * 5000 + "} }",
        'layer { type: "X" x_param { a: ' + "[ { a: " * 5000,
    ],
)
def test_endless_nesting_is_an_error(read: Any, text: str) -> None:
    with pytest.raises(ModelError, match=r"net\.prototxt:1: blocks are nested deeper than 100"):
        read(text)
