"""HDF5 weights and solver states, read and written; gradients; and binary nets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from google.protobuf import text_format

from demitasse import ModelError, Weights
from demitasse_caffe.layers import LAYER_TYPES
from demitasse_caffe.plugin import model_reader, model_writer
from demitasse_caffe.schema import schema

ICT = "caffemodel/ICT-CHASE+On-accelerator-training/examples/cifar10"
EVERPEACE = "caffemodel/everpeace+caffe/examples"
LAYERS = ["conv1", "conv2", "conv3", "ip1", "ip2"]


def weights_of(path: Path) -> Weights:
    reader = model_reader(path, {})
    assert reader is not None
    return reader.weights()


def same(one: dict[str, list[np.ndarray]], other: dict[str, list[np.ndarray]]) -> bool:
    return list(one) == list(other) and all(
        [(a.shape, a.dtype, a.tobytes()) for a in one[k]]
        == [(a.shape, a.dtype, a.tobytes()) for a in other[k]]
        for k in one
    )


def made(*shapes: tuple[str, list[tuple[int, ...]]], seed: int = 0) -> dict[str, list[np.ndarray]]:
    dice = np.random.default_rng(seed)
    return {
        name: [dice.standard_normal(shape).astype(np.float32) for shape in each] for name, each in shapes
    }


NET = (("z", [(4, 3, 2, 2), (4,)]), ("norm", [(4,), (4,), (1,)]), ("a/b", [(5, 16), (5,)]))


def trained() -> Weights:
    """Return a net whose layers are not sorted by name; ``norm`` is not trained, so it has no state."""
    history = made(*NET, seed=1)
    history["norm"] = [np.empty(0, np.float32)] * 3
    return Weights(made(*NET), 70, {"history": history}, gradients=made(*NET, seed=2))


# Weights.


@pytest.mark.parametrize("suffix", [".caffemodel", ".caffemodel.h5"])
def test_parameters_and_gradients_come_back_in_order(tmp_path: Path, suffix: str) -> None:
    weights, path = trained(), tmp_path / f"w{suffix}"
    model_writer(path, weights)
    found = weights_of(path)
    assert same(found.parameters, weights.parameters)
    assert same(found.gradients, weights.gradients)
    assert (found.iteration, found.state) == (None, {})
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", [".caffemodel", ".caffemodel.h5"])
def test_float64_stays_float64(tmp_path: Path, suffix: str) -> None:
    path, array = tmp_path / f"w{suffix}", np.array([0.1, 0.2])
    model_writer(path, Weights({"a": [array]}, gradients={"a": [2 * array]}))
    found = weights_of(path)
    assert found.parameters["a"][0].dtype == found.gradients["a"][0].dtype == np.float64
    assert found.gradients["a"][0].tolist() == [0.2, 0.4]


def test_gradients_of_some_parameters_are_empty_arrays_for_the_others(tmp_path: Path) -> None:
    nothing, three = np.empty(0, np.float32), np.ones(3, np.float32)
    path = tmp_path / "w.caffemodel"
    model_writer(path, Weights({"a": [three, three]}, gradients={"a": [nothing, 5 * three]}))
    assert [array.tolist() for array in weights_of(path).gradients["a"]] == [[], [5, 5, 5]]


def test_an_hdf5_file_has_the_groups_that_caffe_reads(tmp_path: Path) -> None:
    model_writer(tmp_path / "w.caffemodel.h5", trained())
    with h5py.File(tmp_path / "w.caffemodel.h5") as file:
        assert sorted(file) == ["data", "diff"]
        assert file["data/z/1"].shape == (4,)
        assert file["data/z/0"].dtype == np.dtype("<f4")
        assert file["diff/norm/2"].shape == (1,)


def test_real_weights_in_hdf5_are_read_by_name(shared: Path) -> None:
    parameters = weights_of(shared / ICT / "cifar10_quick_iter_5000.caffemodel.h5").parameters
    assert list(parameters) == LAYERS
    assert [a.shape for a in parameters["ip1"]] == [(64, 1024), (64,)]
    with h5py.File(shared / ICT / "cifar10_quick_iter_5000.caffemodel.h5") as file:
        assert np.array_equal(parameters["conv2"][1], file["data/conv2/1"])


def test_weights_in_hdf5_and_protobuf_become_each_other_bit_for_bit(
    shared: Path, tmp_path: Path
) -> None:
    for source in ("cifar10_quick_iter_5000.caffemodel.h5", "cifar10_quick_iter_4000.caffemodel"):
        before = weights_of(shared / ICT / source)
        for suffix in (".caffemodel", ".caffemodel.h5"):
            path = tmp_path / f"w{suffix}"
            model_writer(path, before)
            assert same(weights_of(path).parameters, before.parameters)


def test_an_hdf5_file_is_known_by_its_content_whatever_its_suffix(shared: Path, tmp_path: Path) -> None:
    data = (shared / ICT / "cifar10_quick_iter_5000.caffemodel.h5").read_bytes()
    for name in ("w.caffemodel", "w.h5"):
        (tmp_path / name).write_bytes(data)
        assert list(weights_of(tmp_path / name).parameters) == LAYERS


def test_another_h5_is_left_to_another_plugin(shared: Path, tmp_path: Path) -> None:
    assert model_reader(shared / "hdf5/sample_data.h5", {}) is None
    (tmp_path / "text.h5").write_text("not HDF5")
    assert model_reader(tmp_path / "text.h5", {}) is None


def test_what_another_layer_shares_is_an_empty_array(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "w.caffemodel.h5", "w") as file:
        file["data/first/0"] = np.ones((2, 2), np.float32)
        file["data/second/1"] = np.ones(2, np.float32)  # its weights belong to first
    second = weights_of(tmp_path / "w.caffemodel.h5").parameters["second"]
    assert [array.shape for array in second] == [(0,), (2,)]


# Solver states.


@pytest.mark.parametrize("suffix", [".solverstate", ".solverstate.h5"])
@pytest.mark.parametrize("slots", [("history",), ("history", "second")])
def test_a_state_and_its_weights_come_back(tmp_path: Path, suffix: str, slots: tuple[str, ...]) -> None:
    weights = trained()
    weights.state = {
        slot: {k: [np.full_like(a, i) for a in v] for k, v in weights.state["history"].items()}
        for i, slot in enumerate(slots, 1)
    }
    path = tmp_path / f"net_iter_70{suffix}"
    model_writer(path, weights)
    model = path.name.replace("solverstate", "caffemodel")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, model])
    found = weights_of(path)
    assert found.iteration == 70
    assert same(found.parameters, weights.parameters)
    assert tuple(found.state) == slots
    for number, slot in enumerate(slots, 1):
        values = {k: [set(a.ravel().tolist()) for a in v] for k, v in found.state[slot].items()}
        # The file has zeros for what is not trained, because Caffe counts all parameters.
        assert values == {"z": [{number}] * 2, "norm": [{0.0}] * 3, "a/b": [{number}] * 2}
    assert same(weights_of(tmp_path / model).parameters, weights.parameters)


def test_the_history_is_in_the_order_of_the_net_with_what_is_not_trained(tmp_path: Path) -> None:
    weights = trained()
    model_writer(tmp_path / "x.solverstate", weights)
    message = schema({}).message("SolverState")
    message.ParseFromString((tmp_path / "x.solverstate").read_bytes())
    assert (message.iter, message.learned_net) == (70, str(tmp_path / "x.caffemodel"))
    shapes = [tuple(blob.shape.dim) for blob in message.history]
    assert shapes == [shape for _, each in NET for shape in each]
    model_writer(tmp_path / "x.solverstate.h5", weights)
    with h5py.File(tmp_path / "x.solverstate.h5") as file:
        assert [file[f"history/{n}"].shape for n in range(7)] == shapes
        assert file["iter"][()].tolist() == [70]
        assert file["current_step"][()].tolist() == [0]
        assert file["learned_net"][()].decode() == str(tmp_path / "x.caffemodel.h5")


def test_a_shared_parameter_has_one_history(tmp_path: Path) -> None:
    twice, own = np.ones((2, 2), np.float32), np.zeros(2, np.float32)
    nothing = np.empty(0, np.float32)
    state = {"history": {"a": [3 * twice, own], "b": [nothing, own + 1]}}
    weights = Weights({"a": [twice, own], "b": [twice, own + 7]}, iteration=1, state=state)
    for suffix in (".solverstate", ".solverstate.h5"):
        path = tmp_path / f"x{suffix}"
        model_writer(path, weights)
        found = weights_of(path).state["history"]
        assert {k: [a.shape for a in v] for k, v in found.items()} == {
            "a": [(2, 2), (2,)],
            "b": [(0,), (2,)],
        }
        assert found["b"][1].tolist() == [1, 1]


@pytest.mark.parametrize("suffix", ["", ".h5"])
def test_weights_that_are_there_already_are_not_written_again(tmp_path: Path, suffix: str) -> None:
    weights = trained()
    model, state = tmp_path / f"x.caffemodel{suffix}", tmp_path / f"x.solverstate{suffix}"
    model_writer(model, weights)
    before = model.stat().st_ino
    model_writer(state, weights)
    assert model.stat().st_ino == before
    weights.parameters["z"][1][0] += 1
    with pytest.raises(ModelError, match=r"x\.caffemodel.*: exists with other weights than the state"):
        model_writer(state, weights)
    model_writer(model, weights)
    model_writer(state, weights)
    assert same(weights_of(state).parameters, weights.parameters)


def test_a_moved_pair_is_found_beside_each_other(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    model_writer(tmp_path / "old/x.solverstate", trained())
    (tmp_path / "old").rename(tmp_path / "new")
    assert weights_of(tmp_path / "new/x.solverstate").iteration == 70


@pytest.mark.parametrize("name", ["iter_4000.solverstate", "iter_5000.solverstate.h5"])
def test_real_states_have_their_history_by_layer(shared: Path, tmp_path: Path, name: str) -> None:
    weights = weights_of(shared / ICT / f"cifar10_quick_{name}")
    assert weights.iteration == int(name[5:9])
    history = weights.state["history"]
    assert list(weights.parameters) == list(history) == LAYERS
    for layer, arrays in history.items():
        assert [a.shape for a in arrays] == [a.shape for a in weights.parameters[layer]]
        assert all(a.any() for a in arrays)
    for suffix in (".solverstate", ".solverstate.h5"):
        model_writer(tmp_path / f"again{suffix}", weights)
        again = weights_of(tmp_path / f"again{suffix}")
        assert again.iteration == weights.iteration
        assert same(again.state["history"], history)
        assert same(again.parameters, weights.parameters)


def caffes_hdf5(path: Path, weights: dict[str, list[np.ndarray]], history: list[np.ndarray]) -> Path:
    """Write a state and its weights as Caffe does: layers are sorted by name only."""
    model = path.with_name("w.caffemodel.h5")
    with h5py.File(model, "w") as file:
        for layer, arrays in weights.items():
            for number, array in enumerate(arrays):
                file[f"data/{layer}/{number}"] = array
    with h5py.File(path, "w") as file:
        file["iter"], file["current_step"] = np.array([5], np.int32), np.array([2], np.int32)
        file["learned_net"] = np.bytes_(model.name)
        for number, array in enumerate(history):
            file[f"history/{number}"] = array
    return path


def test_shapes_tell_the_order_that_hdf5_does_not_keep(tmp_path: Path) -> None:
    parameters = made(("z", [(2, 3), (2,)]), ("a", [(4, 2), (4,)]))
    history = [array + 1 for arrays in parameters.values() for array in arrays]
    found = weights_of(caffes_hdf5(tmp_path / "s.solverstate.h5", parameters, history))
    assert same(found.parameters, parameters)
    assert same(found.state["history"], {k: [a + 1 for a in v] for k, v in parameters.items()})
    assert found.record == {"current_step": 2}


def test_an_order_that_shapes_do_not_tell_is_left_to_the_net(tmp_path: Path) -> None:
    parameters = made(("z", [(2, 2)]), ("a", [(2, 2)]))
    history = [array + 1 for (array,) in parameters.values()]
    found = weights_of(caffes_hdf5(tmp_path / "s.solverstate.h5", parameters, history))
    assert list(found.state["history"]) == [""]
    assert [a.tobytes() for a in found.state["history"][""]] == [a.tobytes() for a in history]
    model_writer(tmp_path / "again.solverstate", found)
    again = schema({}).message("SolverState")
    again.ParseFromString((tmp_path / "again.solverstate").read_bytes())
    assert [np.float32(blob.data).tobytes() for blob in again.history] == [a.tobytes() for a in history]
    assert again.current_step == 2


def test_weights_without_an_iteration_are_no_state(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"x\.solverstate: the weights have no iteration"):
        model_writer(tmp_path / "x.solverstate", Weights({"a": [np.ones(2, np.float32)]}))
    assert not list(tmp_path.iterdir())


def test_state_of_a_foreign_solver_has_no_place(tmp_path: Path) -> None:
    weights = trained()
    weights.state = {"preconditioner": weights.state["history"]}
    with pytest.raises(ModelError, match=r"solver state preconditioner has no place .* history and sec"):
        model_writer(tmp_path / "x.solverstate", weights)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".solverstate", ".solverstate.h5"])
def test_a_history_of_another_length_or_shape_is_told(tmp_path: Path, suffix: str) -> None:
    weights, path = trained(), tmp_path / f"x{suffix}"
    model_writer(path, weights)
    model = tmp_path / f"x{suffix.replace('solverstate', 'caffemodel')}"
    model_writer(model, Weights({"z": weights.parameters["z"]}))
    with pytest.raises(ModelError, match=r"a history of 7 blobs, .*x\.caffemodel.* has 2 parameters"):
        weights_of(path)
    other = made(("z", [(4, 3, 2, 2), (9,)]), *NET[1:])
    model_writer(model, Weights(other))
    with pytest.raises(
        ModelError, match=r"layer 'z', parameter 1 has shape \(4,\), but the parameter has \(9,"
    ):
        weights_of(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda f: f.create_dataset("data/a/0", (1 << 40,), "f4"),
            "but the file does not hold all of them",
        ),
        (lambda f: f.create_dataset("data/a/0", (1 << 40,), "f4", chunks=(1 << 20,)), "not hold all"),
        (
            lambda f: f.create_dataset("data/a/0", data=np.bytes_("text")),
            "which is not a type of numbers",
        ),
        (
            lambda f: f.create_dataset(
                "data/a/0", (4,), "f4", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]
            ),
            "is stored in another file",
        ),
        (lambda f: f.create_group("data").create_group("a"), "hold no weights"),
        (lambda f: f.__setitem__("data/a", h5py.ExternalLink("other.h5", "/data")), "hold no weights"),
        (lambda f: f.create_group("data").__setitem__("a", f["data"]), "has two names"),
    ],
)
def test_hdf5_that_lies_is_refused_before_memory_is_taken(
    tmp_path: Path, change: Any, message: str
) -> None:
    path = tmp_path / "x.caffemodel.h5"
    with h5py.File(path, "w") as file:
        change(file)
    with pytest.raises(ModelError, match=rf"x\.caffemodel\.h5: .*{message}"):
        weights_of(path)


# Binary nets and solvers.

TEXT = """
name: "n" force_backward: true debug_info: true state { phase: TEST level: 2 stage: "s" }
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 2 } }
"""


def binary(tmp_path: Path, text: str, name: str, kind: str = "NetParameter") -> Any:
    path = tmp_path / name
    path.write_bytes(text_format.Parse(text, schema({}).message(kind)).SerializeToString())
    return model_reader(path, {each.name: each for each in LAYER_TYPES})


@pytest.mark.parametrize("suffix", [".binarynet", ".binaryproto", ".pb"])
def test_a_binary_net_is_the_net_of_its_text(tmp_path: Path, read: Any, suffix: str) -> None:
    ours, theirs = binary(tmp_path, TEXT, f"n{suffix}").net("test"), read(TEXT).net("test")
    assert [(x.name, x.type, x.bottoms, x.tops) for x in ours.layers] == [
        (x.name, x.type, x.bottoms, x.tops) for x in theirs.layers
    ]
    assert ours.layers[1].parameters == theirs.layers[1].parameters


@pytest.mark.parametrize(
    "text", ['layers { name: "a" type: RELU }', 'layers { layer { type: "relu" } }']
)
def test_older_binary_nets_are_upgraded(tmp_path: Path, text: str) -> None:
    (layer,) = binary(tmp_path, text, "n.binarynet").net("train").layers
    assert layer.type == "ReLU"


def test_layers_without_names_are_told_apart(tmp_path: Path) -> None:
    text = 'layer { type: "Split" } layer { type: "Split" }'
    assert [x.name for x in binary(tmp_path, text, "n.binarynet").net("train").layers] == [
        "Split@1",
        "Split@2",
    ]


def test_a_binary_solver_is_read(tmp_path: Path) -> None:
    (tmp_path / "n.prototxt").write_text(
        TEXT + 'layer { name: "l" type: "SoftmaxWithLoss" bottom: "y" bottom: "x" }'
    )
    text = 'net: "n.prototxt" base_lr: 0.5 lr_policy: "fixed" max_iter: 3 solver_type: SGD'
    solver = binary(tmp_path, text, "s.binaryproto", "SolverParameter").solver()
    assert (solver.max_iterations, solver.rate(0), solver.train.name) == (3, 0.5, "n")


def test_a_mean_is_no_net(shared: Path) -> None:
    with pytest.raises(ModelError, match=r"mean\.binaryproto: holds one array of .*, such as a mean"):
        model_reader(shared / "mean/cifar10_mean.binaryproto", {})


def test_another_pb_is_left_to_another_plugin(tmp_path: Path) -> None:
    (tmp_path / "graph.pb").write_bytes(b"\x0a\x04\x0a\x02ab")
    assert model_reader(tmp_path / "graph.pb", {}) is None
    (tmp_path / "graph.binarynet").write_bytes(b"\x0a\x04\x0a\x02ab")
    with pytest.raises(ModelError, match="is damaged, or neither a binary net nor a binary solver"):
        model_reader(tmp_path / "graph.binarynet", {})


def test_a_real_caffemodel_is_a_net_too(shared: Path) -> None:
    reader = model_reader(shared / EVERPEACE / "mnist/lenet_iter_10000.caffemodel", {})
    assert reader is not None
    layers = {layer.name: layer for layer in reader.net("train").layers}
    assert layers["conv2"].type == "Convolution"
    assert layers["conv2"].parameters.convolution_param.num_output == 50
    assert not layers["conv2"].parameters.blobs


def test_what_a_fork_has_under_the_number_of_clips_parameters_is_no_damage(tmp_path: Path) -> None:
    """Only Caffe's clip_param has required fields; a fork's field 148 belongs to a PSROIPooling, for
    example."""
    net = schema({}).message("NetParameter")
    net.layer.add(name="loss", type="PSROIPooling").clip_param.min = 1
    path = tmp_path / "net.binarynet"
    path.write_bytes(net.SerializePartialToString())
    assert [layer.type for layer in model_reader(path, {}).net("train").layers] == ["PSROIPooling"]
    net.layer[0].type = "Clip"
    path.write_bytes(net.SerializePartialToString())
    with pytest.raises(ModelError, match=r"net\.binarynet: lacks layer\[0\]\.clip_param\.max, which"):
        model_reader(path, {})


def field(number: int, payload: bytes) -> bytes:
    """Return a field of bytes as protobuf writes it; all lengths here are below 128."""
    tag = number << 3 | 2
    head = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
    return head + bytes([len(payload)]) + payload


def test_a_forks_fields_in_a_binary_net_are_told_once(tmp_path: Path) -> None:
    """Written by hand: two layers with message 203, one of them also with 150, a field 90 of the net,
    and Clip's field number in a PSROIPooling."""
    strange = field(203, b"\x08\x01")
    layers = (
        field(1, b"p") + field(2, b"PriorBox") + field(4, b"p") + strange,
        field(1, b"q") + field(2, b"PriorBox") + field(4, b"q") + strange + field(150, b"x"),
        field(1, b"s") + field(2, b"PSROIPooling") + field(4, b"s") + field(148, b"\x0d\0\0\x80?"),
    )
    path = tmp_path / "net.binarynet"
    path.write_bytes(field(90, b"fork") + b"".join(field(100, layer) for layer in layers))
    net = model_reader(path, {}).net("train")
    assert [layer.name for layer in net.layers] == ["p", "q", "s"]
    assert net.notes == (
        f"{path}: fields that Caffe does not have are left out: LayerParameter 4 (numbers 148, 150, "
        f"203), NetParameter 1 (number 90)",
    )


def test_a_forks_fields_beside_weights_are_told_with_them(tmp_path: Path) -> None:
    blob = field(7, b"\x0a\x01\x02") + field(5, np.float32([1, 2]).tobytes()) + field(21, b"z")
    layer = field(1, b"ip") + field(2, b"InnerProduct") + field(7, blob) + field(203, b"")
    path = tmp_path / "w.caffemodel"
    path.write_bytes(field(100, layer))
    told = f"{path}: fields that Caffe does not have are left out: BlobProto 1 (number 21), LayerPar"
    weights = weights_of(path)
    assert weights.parameters["ip"][0].tolist() == [1, 2]
    assert [note.startswith(told) for note in weights.notes] == [True]
    assert model_reader(path, {}).net("train").notes[0].endswith(": LayerParameter 1 (number 203)")
    model_writer(tmp_path / "again.caffemodel", weights)
    assert weights_of(tmp_path / "again.caffemodel").notes == ()


def test_fields_of_a_type_that_a_package_adds_are_no_forks(tmp_path: Path) -> None:
    kind = SimpleNamespace(name="SoftClamp", parameters={"beta": 1.0})
    net = schema({"SoftClamp": kind}).message("NetParameter")
    net.layer.add(name="c", type="SoftClamp", top=["c"]).soft_clamp_param.beta = 3
    path = tmp_path / "net.binarynet"
    path.write_bytes(net.SerializeToString())
    found = model_reader(path, {"SoftClamp": kind}).net("train")
    assert (found.layers[0].parameters["beta"], found.notes) == (3, ())
