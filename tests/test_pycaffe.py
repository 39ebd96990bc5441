"""What pycaffe scripts do with nets: each result against a formula in float64, or another reader's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pycaffe_nets import RANDOM, Make, branching, close, through_a_file

import demitasse_caffe.pycaffe as caffe
from demitasse import ModelError, ShapeError
from demitasse_caffe.pycaffe import layers as L  # noqa: N812 (its name in every script)
from demitasse_caffe.pycaffe import params as P  # noqa: N812

pytestmark = pytest.mark.usefixtures("scripts")


class Formula:
    """The values and gradients of ``branching`` in float64, for a gradient of the score."""

    def __init__(self, net: caffe.Net, x: np.ndarray, d_score: np.ndarray) -> None:
        (W, b), (V, c), (U, e) = (
            [blob.data.astype(np.float64) for blob in net.params[k]] for k in ("hidden", "left", "right")
        )
        self.before = x @ W.T + b
        self.hidden = np.maximum(self.before, 0)
        self.score = self.hidden @ V.T + c + self.hidden @ U.T + e
        self.d_after = d_score @ V + d_score @ U
        self.d_hidden = self.d_after * (self.before > 0)
        self.d_data = self.d_hidden @ W
        self.d_weights = self.d_hidden.T @ x


@pytest.fixture
def d_score() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(4, 3))


# Blobs and layers.


def test_a_net_says_what_it_is_made_of(make: Make) -> None:
    net = make(branching())
    assert net._layer_names == ["data", "hidden", "relu", "left", "right", "score"]
    assert [layer.type for layer in net.layers[:3]] == ["Input", "InnerProduct", "ReLU"]
    assert list(net.blobs) == ["data", "hidden", "left", "right", "score"]
    assert {name: [blob.shape for blob in blobs] for name, blobs in net.params.items()} == {
        "hidden": [(5, 6), (5,)],
        "left": [(3, 5), (3,)],
        "right": [(3, 5), (3,)],
    }
    assert (net.inputs, net.outputs) == (["data"], ["score"])
    assert net.bottom_names["score"] == ["left", "right"]
    assert net.top_names["relu"] == ["hidden"]
    assert (net._inputs, net._outputs) == ([0], [4])
    assert (net._bottom_ids(5), net._top_ids(2)) == ([2, 3], [1]), "blobs by number"
    assert net.layer_dict["hidden"].blobs[0] is net.params["hidden"][0]
    blob = net.blobs["hidden"]
    assert (blob.num, blob.channels, blob.height, blob.width, blob.count) == (4, 5, 1, 1, 20)


def test_names_of_caffes_compiled_module_are_found(make: Make) -> None:
    """Scripts that merge or convert weights ask what a layer's parameters are kept in."""
    net = make(branching())
    assert type(net.params["hidden"]) is type(net.layers[1].blobs) is caffe._caffe.BlobVec
    assert caffe._caffe.RawBlobVec is caffe._caffe.BlobVec
    assert caffe._caffe.Layer is caffe.Layer
    assert caffe._caffe.get_solver is caffe.get_solver
    for name in ("layer_type_list", "set_random_seed", "solver_count", "set_solver_rank", "has_nccl"):
        assert getattr(caffe._caffe, name) is getattr(caffe, name)
    assert caffe.pycaffe.Net is caffe.Net and caffe.pycaffe.SGDSolver is caffe.SGDSolver
    assert net._blobs[list(net._blob_names).index("left")] is net.blobs["left"]


def test_blobs_are_live_arrays(make: Make, x: np.ndarray, d_score: np.ndarray) -> None:
    net = make(branching())
    data, score = net.blobs["data"].data, net.blobs["score"].data
    data[...] = x
    result = net.forward()
    assert result.keys() == {"score"}
    assert np.shares_memory(result["score"], score)
    assert close(score, Formula(net, x, d_score).score)
    net.params["left"][1].data[...] += 2
    net.forward()
    assert close(score, Formula(net, x, d_score).score), "a parameter's edit is in the next forward"


def test_inputs_are_given_by_name_and_must_be_all_of_a_batch(make: Make, x: np.ndarray) -> None:
    net = make(branching())
    once = net.forward(data=x)["score"].copy()
    assert np.array_equal(net.forward(blobs=["hidden"])["hidden"], net.blobs["hidden"].data)
    assert np.array_equal(net.blobs["score"].data, once)
    with pytest.raises(ModelError, match=r"given image; the net's inputs are data"):
        net.forward(image=x)
    with pytest.raises(ShapeError, match=r"blob 'data': \(3,\) samples .* batch of \(4,\)"):
        net.forward(data=x[:3])


def test_forward_stops_and_starts_at_layers(make: Make, x: np.ndarray, d_score: np.ndarray) -> None:
    """Also between a blob's values before and after a layer that works in place."""
    net = make(branching())
    formula = Formula(net, x, d_score)
    net.blobs["data"].data[...] = x
    assert close(net.forward(end="hidden")["hidden"], formula.before)
    assert not net.blobs["score"].data.any()
    net.forward(start="relu", end="relu")
    assert close(net.blobs["hidden"].data, formula.hidden)
    net.blobs["hidden"].data[...] = 1
    net.forward(start="left")
    V, U = net.params["left"][0].data, net.params["right"][0].data
    assert close(net.blobs["score"].data, np.ones((4, 5)) @ (V + U).T)
    with pytest.raises(ModelError, match=r"unknown layer 'rely'; did you mean 'relu'"):
        net.forward(start="rely")


def test_scripts_of_2014_run_layers_by_number_and_ask_nets_for_modes(
    tmp_path: Path, x: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caffe.runtime._State, "phase", None)
    n = branching()
    n.drop = L.Dropout(n.score, dropout_ratio=0.5)
    n.twice = L.Power(n.drop, scale=2)
    n.loss = L.EuclideanLoss(n.twice, n.score, loss_weight=3)
    through_a_file(tmp_path, n).save(tmp_path / "net.caffemodel")
    net = caffe.Net(str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel"))
    net.set_mode_cpu()
    net.set_mode_gpu()
    net.set_device(0)
    net.set_phase_test()
    with pytest.raises(ModelError, match=r"made for caffe.TEST; give caffe.TRAIN when you make it"):
        net.set_phase_train()
    net.blobs["data"].data[...] = x
    assert net._forward(0, len(net.layers) - 2) == 0
    twice, score = net.blobs["twice"], net.blobs["score"].data
    assert close(twice.data, 2 * score), "nothing is dropped in tests"
    twice.data[...] = score + 1
    loss = net._forward(len(net.layers) - 1, len(net.layers) - 1)
    assert np.isclose(loss, 3 * score.size / 2 / 4, rtol=1e-4)
    net._backward(len(net.layers) - 1, len(net.layers) - 1)
    assert np.allclose(twice.diff, 3 / 4, rtol=1e-4)
    with pytest.raises(ModelError, match="given None"):
        caffe.Net(str(tmp_path / "net.prototxt"))
    caffe.set_phase_train()
    caffe.Net(str(tmp_path / "net.prototxt"), str(tmp_path / "net.caffemodel")).set_phase_train()
    caffe.set_phase_test()
    caffe.Net(str(tmp_path / "net.prototxt")).set_phase_test()


def test_an_edit_is_read_by_a_later_layer_alone(make: Make) -> None:
    """Where an earlier reader of the blob had it in its kernel's own layout already."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 8, 9, 9]})
    n.first = L.Convolution(n.data, num_output=16, kernel_size=3, weight_filler=RANDOM)
    n.one = L.Convolution(n.first, num_output=16, kernel_size=3, weight_filler=RANDOM)
    n.two = L.Convolution(n.first, num_output=16, kernel_size=3, weight_filler=RANDOM)
    net = make(n, force_backward=True)
    net.forward(data=np.random.default_rng(0).normal(size=(1, 8, 9, 9)))
    before = net.blobs["one"].data.copy()
    net.blobs["first"].data[...] = 1
    net.forward(start="two")
    expected = net.params["two"][0].data.sum((1, 2, 3))
    assert np.allclose(net.blobs["two"].data[0, :, 2, 3], expected, atol=1e-3)
    assert np.array_equal(net.blobs["one"].data, before)
    net.params["two"][0].data[...] *= 2
    net.blobs["two"].diff[...] = 1
    net.backward(start="two", end="two")
    assert np.allclose(net.params["two"][0].diff, 25, atol=1e-3), "the edited blob's sum over 5 x 5"
    net.blobs["one"].diff[...] = 0
    net.backward(start="two", end="first")
    inner = net.params["two"][0].data.sum((0, 2, 3))
    assert np.allclose(net.blobs["first"].diff[0, :, 3, 3], inner, atol=1e-3), "the edited weights"


def test_a_layer_in_place_on_an_input(make: Make, x: np.ndarray) -> None:
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [4, 6]})
    n.relu = L.ReLU(n.data, in_place=True)
    net = make(n, force_backward=True)
    for sign in (1, -1):
        net.blobs["data"].data[...] = sign * x
        net.forward()
        assert close(net.blobs["data"].data, np.maximum(sign * x, 0))
    net.blobs["data"].diff[...] = 1
    net.backward()
    assert close(net.blobs["data"].diff, -x > 0)


# Backward.


def test_backward_from_the_outputs_to_the_inputs(make: Make, x: np.ndarray, d_score: np.ndarray) -> None:
    net = make(branching(), force_backward=True)
    net.forward(data=x)
    formula = Formula(net, x, d_score)
    found = net.backward(score=d_score, diffs=["left"])
    assert found.keys() == {"data", "left"}
    assert close(found["data"], formula.d_data)
    assert close(found["left"], d_score)
    assert close(net.blobs["hidden"].diff, formula.d_hidden), "before the layer in place, at the end"
    assert close(net.params["hidden"][0].diff, formula.d_weights)
    with pytest.raises(ModelError, match="given prob; the net's outputs are score"):
        net.backward(prob=d_score)


@pytest.mark.parametrize("shared", [False, True])
def test_force_backward_gives_frozen_parameters_a_gradient(
    make: Make, x: np.ndarray, d_score: np.ndarray, shared: bool
) -> None:
    """A file that asks for it has Caffe compute them whatever lr_mult is; without, none is there."""
    n = branching()
    n.hidden.fn.params["param"] = [{"lr_mult": 0}, {"lr_mult": 0}]
    net, plain = make(n, force_backward=True), make(n)
    if shared:
        plain.params["left"][0].data[...] *= 3
        net.share_with(plain)
        assert np.array_equal(net.params["left"][0].data, plain.params["left"][0].data)
    for each in (net, plain):
        each.forward(data=x)
        each.backward(score=d_score)
    formula = Formula(net, x, d_score)
    assert close(net.params["hidden"][0].diff, formula.d_weights)
    assert close(net.params["hidden"][1].diff, formula.d_hidden.sum(0))
    assert not plain.params["hidden"][0].diff.any()


def test_gradients_of_parameters_add_up_until_they_are_cleared(
    make: Make, x: np.ndarray, d_score: np.ndarray
) -> None:
    net = make(branching(), force_backward=True)
    net.forward(data=x)
    diff = net.params["hidden"][0].diff
    for times in (1, 2, 3):
        net.backward(score=d_score)
        assert close(diff, times * Formula(net, x, d_score).d_weights)
    net.clear_param_diffs()
    assert not diff.any()


def test_backward_starts_at_any_blob_and_ends_at_any_layer(
    make: Make, x: np.ndarray, d_score: np.ndarray
) -> None:
    net = make(branching(), force_backward=True)
    net.forward(data=x)
    formula = Formula(net, x, d_score)
    given = np.random.default_rng(2).normal(size=(4, 5))
    net.blobs["hidden"].diff[...] = given
    assert close(net.backward(start="relu", end="relu")["hidden"], given * (formula.before > 0))
    net.blobs["hidden"].diff[...] = given
    net.backward(start="hidden")
    W = net.params["hidden"][0].data
    assert close(net.blobs["data"].diff, given @ W), "without the layer in place"
    net.blobs["score"].diff[...] = d_score
    net.backward(start="score", end="left")
    assert close(net.blobs["right"].diff, d_score)
    assert close(net.blobs["data"].diff, given @ W), "nothing below the end is run"


def test_a_net_that_only_ran_forward_can_run_backward(
    make: Make, x: np.ndarray, d_score: np.ndarray
) -> None:
    """Without force_backward in the file; an edit between forward and backward counts."""
    net = make(branching())
    told, taken = net.forward(data=x)["score"], net.blobs["hidden"].data
    net.blobs["hidden"].data[:, 0] = 7
    before, hidden = told.copy(), taken.copy()
    net.blobs["score"].diff[...] = d_score
    net.backward()
    assert np.array_equal(told, before) and np.array_equal(taken, hidden), "what a script holds stays"
    assert (net.blobs["hidden"].data[:, 0] == 7).all()
    assert close(net.params["left"][0].diff[:, 0], 7 * d_score.sum(0))


def test_a_loss_is_where_backward_begins(make: Make, x: np.ndarray) -> None:
    n = branching()
    n.label = L.Input(shape={"dim": [4]})
    n.loss = L.SoftmaxWithLoss(n.score, n.label, loss_weight=2)
    net = make(n, caffe.TRAIN)
    label = np.array([2, 0, 1, 1])
    net.blobs["data"].data[...], net.blobs["label"].data[...] = x, label
    loss = float(net.forward()["loss"])
    scores = net.blobs["score"].data.astype(np.float64)
    probability = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    assert loss == pytest.approx(-np.log(probability[range(4), label]).mean(), rel=1e-5)
    assert net.blob_loss_weights["loss"] == 2
    net.backward()
    d_score = 2 * (probability - np.eye(3)[label]) / 4
    assert close(net.blobs["score"].diff, d_score)
    assert close(net.params["hidden"][0].diff, Formula(net, x, d_score).d_weights)
    assert not net.blobs["data"].diff.any(), "nobody asked for the gradient of an input"


def test_a_layer_asks_for_the_gradient_of_an_input(make: Make, tmp_path: Path) -> None:
    """By propagate_down, in a net and in a solver's, without force_backward."""
    n = caffe.NetSpec()
    constant = {"type": "constant"}
    n.data, n.label = L.DummyData(
        ntop=2, shape=[{"dim": [4, 6]}, {"dim": [4]}], data_filler=[RANDOM, constant]
    )
    n.score = L.InnerProduct(
        n.data, num_output=3, weight_filler=RANDOM, propagate_down=True, param={"lr_mult": 0}
    )
    n.loss = L.SoftmaxWithLoss(n.score, n.label)
    net = make(n, caffe.TRAIN)
    solver = tmp_path / "solver.prototxt"
    solver.write_text(f'net_param {{ {n.to_proto()} }} base_lr: 1 lr_policy: "fixed"')
    trained = caffe.get_solver(str(solver))
    trained.step(1)
    net.forward()
    net.backward()
    for each in (net, trained.net):
        expected = each.blobs["score"].diff @ each.params["score"][0].data
        assert expected.any() and close(each.blobs["data"].diff, expected)


def test_gradients_agree_with_differences(make: Make) -> None:
    """Of a net with convolutions, pooling, a branch and a softmax; by its own forward passes."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [2, 3, 8, 8]})
    n.conv = L.Convolution(n.data, num_output=4, kernel_size=3, weight_filler=RANDOM)
    n.pool = L.Pooling(n.conv, pool=P.Pooling.AVE, kernel_size=2, stride=2)
    n.relu = L.ReLU(n.pool, negative_slope=0.5, in_place=True)
    n.side = L.Convolution(n.relu, num_output=4, kernel_size=1, weight_filler=RANDOM)
    n.joined = L.Concat(n.relu, n.side)
    n.score = L.InnerProduct(n.joined, num_output=3, weight_filler=RANDOM)
    n.prob = L.Softmax(n.score)
    net = make(n, force_backward=True)
    random = np.random.default_rng(3)
    weights = random.normal(size=(2, 3))
    image = random.normal(size=(2, 3, 8, 8))

    def objective(array: np.ndarray) -> float:
        return float((net.forward(data=array)["prob"] * weights).sum(dtype=np.float64))

    objective(image)
    found = net.backward(prob=weights)["data"].copy()
    direction = found / np.linalg.norm(found)
    slope = (objective(image + 0.01 * direction) - objective(image - 0.01 * direction)) / 0.02
    assert slope == pytest.approx(np.linalg.norm(found), rel=1e-3)


# Shapes.


def test_a_net_follows_its_inputs_shapes(make: Make, x: np.ndarray, d_score: np.ndarray) -> None:
    net = make(branching())
    weights = net.params["hidden"][0].data
    net.blobs["data"].reshape(2, 6)
    assert net.blobs["data"].data.shape == (2, 6), "at once"
    net.blobs["data"].data[...] = x[:2]
    net.reshape()
    assert net.blobs["score"].shape == (2, 3)
    net.forward()
    assert close(net.blobs["score"].data, Formula(net, x[:2], d_score[:2]).score)
    assert np.shares_memory(weights, net.params["hidden"][0].data), "parameters stay where they are"
    net.blobs["data"].reshape(4, 6)
    assert close(net.forward(data=x)["score"], Formula(net, x, d_score).score)


def test_several_inputs_are_reshaped_one_after_the_other(make: Make) -> None:
    n = caffe.NetSpec()
    n.a, n.b = L.Input(shape=[{"dim": [2, 3]}, {"dim": [2, 3]}], ntop=2)
    n.total = L.Eltwise(n.a, n.b)
    net = make(n)
    net.blobs["a"].reshape(5, 3)
    a = net.blobs["a"].data
    a[...] = 1
    with pytest.raises(ShapeError, match=r"input 'a' has shape \(5, 3\) here"):
        net.forward()
    net.blobs["b"].reshape(5, 3)
    net.blobs["b"].data[...] = 2
    assert (net.forward()["total"] == np.full((5, 3), 3)).all()


def test_only_inputs_are_reshaped(make: Make) -> None:
    net = make(branching())
    net.blobs["score"].reshape(4, 3)
    with pytest.raises(
        ShapeError, match=r"'score' is not an input: its shape \(4, 3\) follows .*\(data\)"
    ):
        net.blobs["score"].reshape(4, 4)
    with pytest.raises(ShapeError, match=r"\(0, 6\) is not a shape"):
        net.blobs["data"].reshape(0, 6)


def test_layers_behind_the_end_need_not_fit(make: Make) -> None:
    """As scripts that dream on images of any size need it: gradients of an inner blob."""
    n = caffe.NetSpec()
    n.data = L.Input(shape={"dim": [1, 2, 6, 6]})
    n.conv = L.Convolution(n.data, num_output=3, kernel_size=3, weight_filler=RANDOM)
    n.score = L.InnerProduct(n.conv, num_output=4, weight_filler=RANDOM)
    net = make(n, force_backward=True)
    source, inner = net.blobs["data"], net.blobs["conv"]
    net.forward(data=np.ones((1, 2, 6, 6)))
    before = net.blobs["score"].data.copy()
    source.reshape(1, 2, 9, 7)
    source.data[...] = np.random.default_rng(0).normal(size=(1, 2, 9, 7))
    net.forward(end="conv")
    assert inner.shape == (1, 3, 7, 5)
    inner.diff[:] = inner.data
    net.backward(start="conv")
    W = net.params["conv"][0].data
    expected = sum(inner.data[0, o, 0, 0] * W[o, :, 0, 0] for o in range(3))
    assert close(source.diff[0, :, 0, 0], expected)
    assert np.array_equal(net.blobs["score"].data, before), "what is behind the end keeps its values"
    assert net.blob_loss_weights == {"data": 0, "conv": 0, "score": 0}
    with pytest.raises(ShapeError, match="layer 'score' cannot take this input"):
        net.forward()
    source.reshape(1, 2, 6, 6)
    assert np.array_equal(net.forward(data=np.ones((1, 2, 6, 6)))["score"], before)


def test_any_number_of_samples_in_batches(make: Make, x: np.ndarray) -> None:
    net = make(branching(), force_backward=True)
    many = np.concatenate([x, 2 * x, x[:1]])
    scores = net.forward_all(blobs=["hidden"], data=many)
    assert (scores["score"].shape, scores["hidden"].shape) == ((9, 3), (9, 5))
    assert close(scores["score"], Formula(net, many, np.zeros((9, 3))).score)
    gradients = np.random.default_rng(5).normal(size=(9, 3))
    values, diffs = net.forward_backward_all(data=many, score=gradients)
    assert close(values["score"], scores["score"])
    assert close(diffs["data"], Formula(net, many, gradients).d_data)


def test_a_loss_of_many_samples_is_one_number_a_batch(tmp_path: Path) -> None:
    n = caffe.NetSpec()
    n.x, n.t = (L.Input(input_param={"shape": {"dim": dims}}) for dims in ([4, 3], [4, 3]))
    n.loss = L.EuclideanLoss(n.x, n.t)
    net = through_a_file(tmp_path, n)
    x = np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32)
    losses = net.forward_all(x=x, t=0 * x)["loss"]
    assert close(losses, np.square(x).reshape(2, 12).sum(1) / 8)
    with pytest.raises(ModelError, match="no samples are given; the net's inputs are x, t"):
        net.forward_all()
