"""caffemodels, solver states and means: real files, round trips, damage."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from demitasse import ModelError, Weights
from demitasse_caffe.plugin import model_reader, model_writer
from demitasse_caffe.schema import schema
from demitasse_caffe.weights import read_blob, read_caffemodel

LENET = {
    "conv1": [(20, 1, 5, 5), (20,)],
    "conv2": [(50, 20, 5, 5), (50,)],
    "ip1": [(500, 800), (500,)],
    "ip2": [(10, 500), (10,)],
}
CIFAR_QUICK = {
    "conv1": [(32, 3, 5, 5), (32,)],
    "conv2": [(32, 32, 5, 5), (32,)],
    "conv3": [(64, 32, 5, 5), (64,)],
    "ip1": [(64, 1024), (64,)],
    "ip2": [(10, 64), (10,)],
}
CIFAR_FULL = {
    "conv1": [(32, 3, 5, 5), (32,)],
    "conv2": [(32, 32, 5, 5), (32,)],
    "conv3": [(64, 32, 5, 5), (64,)],
    "ip1": [(10, 1024), (10,)],
}
EVERPEACE = "caffemodel/everpeace+caffe/examples"
REAL = [
    (f"{EVERPEACE}/mnist/lenet_iter_10000.caffemodel", LENET),
    (f"{EVERPEACE}/cifar10/cifar10_quick_iter_4000.caffemodel", CIFAR_QUICK),
    (f"{EVERPEACE}/cifar10/cifar10_quick_iter_5000.caffemodel", CIFAR_QUICK),
    (f"{EVERPEACE}/cifar10/cifar10_full_iter_70000.caffemodel", CIFAR_FULL),
    (
        "caffemodel/skywang666+SingleCaffe/examples/cifar10/cifar10_quick_iter_4000.caffemodel",
        CIFAR_QUICK,
    ),
    (
        "caffemodel/ICT-CHASE+On-accelerator-training/examples/cifar10/"
        "cifar10_quick_iter_4000.caffemodel",
        CIFAR_QUICK,
    ),
]


def weights_of(path: Path) -> Weights:
    reader = model_reader(path, {})
    assert reader is not None
    return reader.weights()


def numbers_of(path: Path) -> dict[str, list[bytes]]:
    """Return each layer's float32 values, read by protobuf itself with the whole schema."""
    net = schema({}).message("NetParameter")
    net.ParseFromString(path.read_bytes())
    found = {}
    for layer in (*net.layer, *net.layers):
        if layer.blobs:
            found[layer.name] = [np.array(blob.data, dtype="<f4").tobytes() for blob in layer.blobs]
    return found


@pytest.mark.parametrize(("path", "shapes"), REAL)
def test_a_real_caffemodel_has_its_logical_shapes_and_its_numbers(
    shared: Path, path: str, shapes: dict[str, list[tuple[int, ...]]]
) -> None:
    parameters = weights_of(shared / path).parameters
    assert {name: [a.shape for a in parts] for name, parts in parameters.items()} == shapes
    assert all(a.dtype == np.float32 for parts in parameters.values() for a in parts)
    assert {k: [a.tobytes() for a in v] for k, v in parameters.items()} == numbers_of(shared / path)


@pytest.mark.parametrize(("path", "shapes"), REAL)
def test_a_real_caffemodel_comes_back_bit_for_bit(
    shared: Path, tmp_path: Path, path: str, shapes: Any
) -> None:
    before = weights_of(shared / path)
    first, second = tmp_path / "one.caffemodel", tmp_path / "two.caffemodel"
    model_writer(first, before)
    after = weights_of(first)
    assert list(before.parameters) == list(after.parameters)
    for name, parts in before.parameters.items():
        for a, b in zip(parts, after.parameters[name], strict=True):
            assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
    model_writer(second, after)
    assert first.read_bytes() == second.read_bytes()
    assert numbers_of(first) == numbers_of(shared / path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.caffemodel", "two.caffemodel"]


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.lists(
            arrays.arrays(
                st.sampled_from([np.float32, np.float64]),
                arrays.array_shapes(min_dims=0, max_dims=5, max_side=3),
            ),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_weights_come_back(tmp_path: Path, parameters: dict[str, list[np.ndarray]]) -> None:
    path = tmp_path / "any.caffemodel"
    model_writer(path, Weights(parameters))
    after = weights_of(path).parameters
    assert list(after) == list(parameters)
    for name, parts in parameters.items():
        for a, b in zip(parts, after[name], strict=True):
            assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes())
            assert b.flags.writeable


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "w.caffemodel"
    model_writer(path, Weights({"a": [np.ones(2, np.float32)]}))
    old = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ModelError, match=r"w\.caffemodel: cannot be written: No space left"):
        model_writer(path, Weights({"a": [np.zeros(3, np.float32)]}))
    assert path.read_bytes() == old
    assert list(tmp_path.iterdir()) == [path]


# Older formats.


def net_of(layers: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(layers, schema({}).message("NetParameter"))


def read_message(tmp_path: Path, message: Any) -> dict[str, list[np.ndarray]]:
    path = tmp_path / "old.caffemodel"
    path.write_bytes(message.SerializeToString())
    return read_caffemodel(path).parameters


FOUR = "num: {} channels: {} height: {} width: {} data: [{}]"


def blob(*shape: int) -> str:
    return FOUR.format(*shape, ", ".join("0.5" for _ in range(int(np.prod(shape)))))


@pytest.mark.parametrize(
    ("kind", "index", "old", "new"),
    [
        ("INNER_PRODUCT", 0, (1, 1, 3, 4), (3, 4)),
        ("INNER_PRODUCT", 0, (1, 1, 1, 4), (1, 4)),
        ("INNER_PRODUCT", 1, (1, 1, 1, 3), (3,)),
        ("CONVOLUTION", 0, (1, 1, 3, 3), (1, 1, 3, 3)),
        ("CONVOLUTION", 1, (1, 1, 1, 1), (1,)),
        ("DECONVOLUTION", 0, (2, 1, 3, 3), (2, 1, 3, 3)),
        ("NONE", 0, (1, 1, 1, 6), (6,)),
    ],
)
def test_blobs_of_four_dimensions_get_their_logical_shapes(
    tmp_path: Path, kind: str, index: int, old: tuple[int, ...], new: tuple[int, ...]
) -> None:
    blobs = [blob(1, 1, 1, 2)] * index + [blob(*old)]
    net = net_of(
        f"layers {{ name: 'x' type: {kind} " + " ".join(f"blobs {{ {b} }}" for b in blobs) + " }"
    )
    assert read_message(tmp_path, net)["x"][index].shape == new


def test_v0_layers_keep_name_and_blobs_one_level_down(tmp_path: Path) -> None:
    net = net_of(
        f"layers {{ layer {{ name: 'ip' type: 'innerproduct' blobs {{ {blob(1, 1, 2, 3)} }} }} }}"
    )
    assert read_message(tmp_path, net)["ip"][0].shape == (2, 3)


def test_double_data_is_read_as_float64(tmp_path: Path) -> None:
    net = net_of("layer { name: 'd' blobs { shape { dim: 2 } double_data: [0.1, 0.2] } }")
    (array,) = read_message(tmp_path, net)["d"]
    assert array.dtype == np.float64
    assert array.tolist() == [0.1, 0.2]


def test_a_single_number_without_a_shape_is_read(tmp_path: Path) -> None:
    # Caffe's Blob::ToProto writes blobs without axes in this way: PReLU's slope shared by all channels,
    # and Scale's factor if num_axes is 0. The solver's history of them is written in the same way.
    net = net_of("layer { name: 's' type: 'Scale' blobs { data: [2.5] } blobs { double_data: [0.1] } }")
    factor, offset = read_message(tmp_path, net)["s"]
    assert (factor.shape, float(factor), offset.shape, float(offset)) == ((), 2.5, (), 0.1)
    state = schema({}).message("SolverState")
    state.iter, state.learned_net = 7, "old.caffemodel"
    for value in (0.25, -1.0):
        state.history.add(data=[value])
    (tmp_path / "net.solverstate").write_bytes(state.SerializeToString())
    history = weights_of(tmp_path / "net.solverstate").state["history"]["s"]
    assert [(array.shape, float(array)) for array in history] == [((), 0.25), ((), -1.0)]


def test_several_numbers_without_a_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"'s', parameter 0: 8 bytes of f4 numbers do not make"):
        read_message(tmp_path, net_of("layer { name: 's' type: 'Scale' blobs { data: [2.5, 1] } }"))


def test_numbers_that_are_not_packed_are_read_too(tmp_path: Path) -> None:
    # BlobProto: shape 7 { dim 1: 2 }, then field 5 twice as single 32-bit values (wire type 5).
    shape = bytes([7 << 3 | 2, 3, 1 << 3 | 2, 1, 2])
    values = b"".join(bytes([5 << 3 | 5]) + np.array(v, "<f4").tobytes() for v in (1.5, -2.0))
    content = shape + values
    layer = b"\x0a\x01x" + bytes([7 << 3 | 2, len(content)]) + content
    path = tmp_path / "unpacked.caffemodel"
    path.write_bytes(bytes([0xA2, 0x06, len(layer)]) + layer)
    (array,) = read_caffemodel(path).parameters["x"]
    assert array.tolist() == [1.5, -2.0]


# Solver states and means.


def test_a_solver_state_brings_iteration_history_and_its_weights(shared: Path) -> None:
    weights = weights_of(shared / EVERPEACE / "mnist/lenet_iter_10000.solverstate")
    assert weights.iteration == 10000
    history = weights.state["history"]
    assert {name: [a.shape for a in parts] for name, parts in history.items()} == LENET
    assert any(a.any() for parts in history.values() for a in parts)
    assert list(weights.parameters) == list(LENET)


def test_a_solver_state_without_its_caffemodel_says_where_it_was_sought(
    shared: Path, tmp_path: Path
) -> None:
    path = tmp_path / "x.solverstate"
    path.write_bytes((shared / EVERPEACE / "mnist/lenet_iter_10000.solverstate").read_bytes())
    with pytest.raises(ModelError, match=r"x\.solverstate: its weights '.*lenet.*' were not found; tri"):
        weights_of(path)


def test_means_are_blobs(shared: Path) -> None:
    assert read_blob(shared / "mean/cifar10_mean.binaryproto").shape == (1, 3, 32, 32)
    mean = read_blob(shared / "mean/imagenet_mean.binaryproto")
    assert mean.shape == (1, 3, 256, 256)
    # The same mean, from the NumPy file next to it.
    assert np.allclose(mean[0], np.load(shared / "mean/ilsvrc_2012_mean.npy"), atol=1e-3)


# Damage.


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"name: 'LeNet'\nlayer { }", "cannot be read as NetParameter|is not a caffemodel"),
        (b"\x89HDF\r\n\x1a\n0000", "is damaged or cut off, HDF5 says"),
        (b"\x0a\x05LeNet", "is not a caffemodel: it holds no layer"),
        (b"\xa2\x06\x03\x0a\x01x", "its 1 layers hold no weights"),
        (b"\xff" * 40, "cannot be read as NetParameter: it is damaged, cut off after 40 bytes"),
    ],
)
def test_what_is_no_caffemodel_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.caffemodel"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"bad\.caffemodel: .*({message})"):
        weights_of(path)


@pytest.mark.parametrize(
    "shape",
    ["dim: 1000000000000000000 dim: 1000000000000000000", "dim: -1 dim: -2", "dim: 3", "dim: 0"],
)
def test_a_shape_that_the_numbers_do_not_fill_is_refused(tmp_path: Path, shape: str) -> None:
    net = net_of(f"layer {{ name: 'x' blobs {{ shape {{ {shape} }} data: [1, 2] }} }}")
    with pytest.raises(ModelError, match=r"layer 'x', parameter 0: 8 bytes of f4 numbers do not make"):
        read_message(tmp_path, net)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("dim: 1 " * 100, "its shape has 100 axes; at most 32"),
        (
            "dim: 0 dim: 4611686018427387904 dim: 4611686018427387904",
            "which is empty, but larger than any blob",
        ),
    ],
)
def test_a_shape_that_no_array_can_have_is_refused(tmp_path: Path, shape: str, told: str) -> None:
    net = net_of(f"layer {{ name: 'x' blobs {{ shape {{ {shape} }} data: {[1] * ('1' in told)} }} }}")
    with pytest.raises(ModelError, match=rf"layer 'x', parameter 0: .*{told}"):
        read_message(tmp_path, net)


def test_what_a_damaged_file_says_is_told_in_a_line_that_can_be_read(tmp_path: Path) -> None:
    text = b"\xff\xfe" * 9000
    length = bytes([len(text) & 0x7F | 0x80, len(text) >> 7 & 0x7F | 0x80, len(text) >> 14])
    layer = b"\x0a" + length + text
    size = len(layer)
    head = bytes([0xA2, 0x06, size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14])
    path = tmp_path / "bad.caffemodel"
    path.write_bytes(head + layer)
    with pytest.raises(ModelError, match=r"bad\.caffemodel: is damaged: .* is not text") as caught:
        weights_of(path)
    assert len(str(caught.value)) < 400

    net = net_of(f"layer {{ name: 'x' blobs {{ shape {{ {'dim: 9700000000 ' * 32} }} data: [1, 2] }} }}")
    with pytest.raises(ModelError, match=r"8 bytes of f4 numbers do not make the shape \(97") as caught:
        read_message(tmp_path, net)
    assert len(str(caught.value)) < 400


def test_numbers_that_are_damaged_and_not_packed_are_told_with_their_layer(tmp_path: Path) -> None:
    blob = b"\x3a\x02\x08\x02" + b"\x4a\x03abc"  # shape (7) of 2, double_diff (9) of three bytes
    layer = b"\x0a\x01x" + b"\x3a" + bytes([len(blob)]) + blob
    path = tmp_path / "bad.caffemodel"
    path.write_bytes(b"\xa2\x06" + bytes([len(layer)]) + layer)
    with pytest.raises(ModelError, match=r"layer 'x', parameter 0: is damaged: its numbers cannot"):
        weights_of(path)


@pytest.mark.parametrize(
    ("name", "stored", "kept"),
    [("DOUBLE", "<f8", "f8"), ("FLOAT", "<f4", "f4"), ("FLOAT16", "<f2", "f4"), ("INT", "<i4", "f4")],
)
def test_raw_numbers_of_other_writers_are_read(
    tmp_path: Path, name: str, stored: str, kept: str
) -> None:
    values = np.array([[1, -2, 3], [4, 5, -0.5 if "f" in stored else 6]])
    net = net_of("layer { name: 'x' blobs { shape { dim: 2 dim: 3 } } }")
    blob = net.layer[0].blobs[0]
    blob.raw_data = values.astype(stored).tobytes()
    blob.raw_data_type = blob.RawType.Value(name)
    blob.raw_diff = (-values).astype(stored).tobytes()
    blob.raw_diff_type = blob.RawType.Value(name)
    path = tmp_path / "raw.caffemodel"
    path.write_bytes(net.SerializeToString())
    weights = read_caffemodel(path)
    (array,), (gradient,) = weights.parameters["x"], weights.gradients["x"]
    assert array.dtype == gradient.dtype == kept
    np.testing.assert_array_equal(array, values)
    np.testing.assert_array_equal(gradient, -values)


def test_raw_numbers_without_a_type_or_of_another_length_are_refused(tmp_path: Path) -> None:
    text = "layer {{ name: 'x' blobs {{ shape {{ dim: 2 }} raw_data: '1234' {} }} }}"
    with pytest.raises(ModelError, match=r"layer 'x', parameter 0: .*no element type .*DOUBLE, FLOAT"):
        read_message(tmp_path, net_of(text.format("")))
    with pytest.raises(ModelError, match=r"parameter 0: 4 bytes of f4 numbers do not make"):
        read_message(tmp_path, net_of(text.format("raw_data_type: FLOAT")))
    read_message(tmp_path, net_of(text.format("raw_data_type: FLOAT16")))


def test_a_cut_off_caffemodel_is_refused_wherever_it_is_cut(shared: Path, tmp_path: Path) -> None:
    data = (shared / REAL[0][0]).read_bytes()
    path = tmp_path / "cut.caffemodel"
    dice = random.Random(1)
    for length in [1, 2, 10, 100, len(data) - 1, *(dice.randrange(len(data)) for _ in range(20))]:
        path.write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"cut\.caffemodel"):
            weights_of(path)


@given(st.binary(max_size=300))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_weights_or_a_users_error(tmp_path: Path, data: bytes) -> None:
    for name in ("any.caffemodel", "any.solverstate"):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(ModelError, match=r"any\."):
            weights_of(path)


@pytest.mark.parametrize("name", ["caffemodel", "solverstate"])
def test_damaged_bytes_are_weights_or_a_users_error(shared: Path, tmp_path: Path, name: str) -> None:
    original = (shared / EVERPEACE / f"cifar10/cifar10_full_iter_70000.{name}").read_bytes()
    # Most of the file is numbers; much of its structure is at the beginning.
    dice = random.Random(name)
    refused = 0
    path = tmp_path / f"damaged.{name}"
    for _ in range(120):
        data = bytearray(original)
        for _ in range(dice.randint(1, 6)):
            where = dice.randrange(dice.choice([200, 3000, len(data)]))
            data[where] = dice.randrange(256)
        path.write_bytes(data)
        try:
            weights_of(path)
        except ModelError as error:
            refused += 1
            assert f"damaged.{name}: " in str(error)
    assert refused > 5


@pytest.mark.parametrize("name", ["x.caffemodel", "x.solverstate", "mean.binaryproto"])
def test_a_pointer_of_git_lfs_is_told_from_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 34\n")
    with pytest.raises(ModelError, match=r"is a Git LFS pointer.* 'git lfs pull'"):
        read_blob(path) if name.startswith("mean") else weights_of(path)


@pytest.mark.parametrize(
    "name", ["net.h5", "net.hdf5", "net", "net.caffemodel.h5.bak", "net.caffemodel"]
)
@pytest.mark.parametrize("form", [".caffemodel", ".caffemodel.h5"])
def test_weights_are_told_by_their_content(tmp_path: Path, name: str, form: str) -> None:
    written = tmp_path / f"written{form}"
    model_writer(written, Weights({"a": [np.arange(6, dtype=np.float32).reshape(2, 3)]}))
    path = written.rename(tmp_path / name)
    assert weights_of(path).parameters["a"][0].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_weights_hold_neither_a_net_nor_a_solver(tmp_path: Path) -> None:
    path = tmp_path / "w.caffemodel"
    model_writer(path, Weights({"a": [np.ones(2, np.float32)]}))
    reader = model_reader(path, {})
    assert reader is not None
    with pytest.raises(ModelError, match="holds weights; the net is in a"):
        reader.net("test")
    with pytest.raises(ModelError, match="holds weights; the solver is in a"):
        reader.solver()


def video_blob(array: np.ndarray) -> bytes:
    """Return a blob as C3D writes it: five extents in fields 1 to 5, then packed numbers in field 6."""
    shape = (1,) * (5 - array.ndim) + array.shape
    extents = b"".join(bytes([8 * (number + 1), extent]) for number, extent in enumerate(shape))
    return extents + inside(6, array.astype("<f4").tobytes())


def inside(number: int, data: bytes) -> bytes:
    """Return a field of bytes in protobuf's format."""
    size, digits = len(data), []
    while size > 127:
        digits.append(size % 128 + 128)
        size //= 128
    return bytes([8 * number + 2, *digits, size]) + data


def test_the_mean_of_videos_is_read_in_its_five_dimensions(tmp_path: Path) -> None:
    mean = np.arange(3 * 2 * 4 * 5, dtype="f4").reshape(1, 3, 2, 4, 5)
    path = tmp_path / "video_mean.binaryproto"
    path.write_bytes(video_blob(mean))
    assert np.array_equal(read_blob(path), mean)
    with pytest.raises(ModelError, match=r"holds one array of shape \(1, 3, 2, 4, 5\), such as a mean"):
        model_reader(path, {})
    path.write_bytes(video_blob(mean)[:-4])
    with pytest.raises(ModelError, match=r"damaged"):
        read_blob(path)


def test_weights_of_videos_are_read_in_the_shapes_of_their_layers(tmp_path: Path) -> None:
    convolution, inner = np.ones((1, 3, 3, 3, 3)), np.ones((4, 6))
    layers = [
        # C3D's CONVOLUTION3D is number 40; INNER_PRODUCT is Caffe's 14.
        (b"conv1a", 40, [convolution, np.ones(1)]),
        (b"fc6", 14, [inner, np.ones(4)]),
    ]
    path = tmp_path / "c3d.caffemodel"
    path.write_bytes(
        b"".join(
            inside(
                2,
                inside(4, name) + bytes([40, kind]) + b"".join(inside(6, video_blob(a)) for a in blobs),
            )
            for name, kind, blobs in layers
        )
    )
    weights = read_caffemodel(path)
    assert {name: [a.shape for a in arrays] for name, arrays in weights.parameters.items()} == {
        "conv1a": [(1, 3, 3, 3, 3), (1,)],
        "fc6": [(4, 6), (4,)],
    }
    assert all((array == 1).all() for arrays in weights.parameters.values() for array in arrays)
    assert weights.gradients == {}
