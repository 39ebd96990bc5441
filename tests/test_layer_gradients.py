"""Every layer type's gradient, through a prototxt and a trained net, against central differences."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import demitasse

H = 1e-6

LAYERS = {
    "Convolution": "convolution_param { num_output: 4 kernel_size: 3 pad: 1 FILL }",
    "Convolution of groups": "convolution_param { num_output: 6 kernel_size: 3 group: 2 FILL }",
    "Convolution strided": "convolution_param { num_output: 3 kernel_size: 3 stride: 2 FILL }",
    "Convolution dilated": "convolution_param { num_output: 3 kernel_size: 2 dilation: 2 FILL }",
    "Convolution without bias": "convolution_param { kernel_size: 1 num_output: 3 bias_term: 0 FILL }",
    "Convolution of sides": "convolution_param { num_output: 3 kernel_size: 3 pad_l: 1 pad_b: 2 FILL }",
    "Pooling MAX of sides": "pooling_param { kernel_size: 2 pad_r: 1 pad_t: 1 round_mode: FLOOR }",
    "Pooling AVE of sides": "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad_b: 2 pad_l: 1 }",
    "Pooling MAX": "pooling_param { pool: MAX kernel_size: 3 stride: 2 }",
    "Pooling MAX padded": "pooling_param { pool: MAX kernel_size: 3 stride: 2 pad: 1 }",
    "Pooling AVE": "pooling_param { pool: AVE kernel_size: 3 stride: 2 pad: 1 }",
    "Pooling global": "pooling_param { pool: AVE global_pooling: true }",
    "ReLU": "",
    "ReLU of six": "relu_param { relu6: true negative_slope: 0.1 }",
    "HardSwish": "",
    "Flip": "flip_param { flip_height: true }",
    "GroupNorm": "group_norm_param { group_num: 2 eps: 0.1 }",
    "ReLU leaking": "relu_param { negative_slope: 0.1 }",
    "LRN": "lrn_param { local_size: 3 alpha: 0.5 beta: 0.75 k: 2 }",
    "LRN within": "lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }",
    "BatchNorm": "batch_norm_param { eps: 0.1 }",
    "BatchNorm by kept statistics": "batch_norm_param { use_global_stats: true eps: 0.5 }",
    "BatchNorm scaled": "batch_norm_param { scale_bias: true eps: 0.1 }",
    "ELU with a factor": "elu_param { alpha: 1.5 lambda: 1.05 }",
    "BN of averages": "bn_param { slope_filler { type: 'gaussian' std: 1 } eps: 0.1 }",
    "BN frozen": "bn_param { slope_filler { type: 'gaussian' std: 1 } frozen: true eps: 0.1 }",
    "Scale": "scale_param { filler { type: 'gaussian' std: 1 } bias_term: true }",
    "Scale of planes": "scale_param { num_axes: 3 filler { type: 'gaussian' std: 1 } }",
    "Bias": "bias_param { num_axes: 2 }",
    "InnerProduct": "inner_product_param { num_output: 5 FILL }",
    "InnerProduct transposed": "inner_product_param { num_output: 5 transpose: true FILL }",
    "Dropout": "dropout_param { dropout_ratio: 0.3 }",
    "SpatialDropout": "dropout_param { dropout_ratio: 0.3 }",
    "Softmax": "",
    "Flatten": "",
    "Reshape": "reshape_param { shape { dim: 0 dim: -1 } }",
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }",
    "Normalize": "norm_param { across_spatial: false channel_shared: false eps: 0.1 }",
    "Normalize of samples": "norm_param { scale_filler { type: 'constant' value: 3 } }",
    "Interp": "interp_param { height: 7 width: 11 pad_beg: -1 }",
    "Interp of fewer": "interp_param { shrink_factor: 2 }",
    "Reorg": "reorg_param { stride: 2 reverse: true }",
    "Upsample": "upsample_param { scale_h: 2 scale_w: 3 }",
    "UpsampleDarknet": "upsample_darknet_param { stride: 2 }",
    "ResizeBilinear": "resize_bilinear_param { output_height: 7 scale_width: 0.7 }",
    "ResizeNearestNeighbor": "resize_nearest_neighbor_param { output_height: 7 output_width: 3 }",
    "Pad": "pad_param { paddings: [0, 0, 1, 0, 2, 1, 0, 3] constant_values: 0.5 }",
}
FILL = 'weight_filler { type: "gaussian" std: 0.5 }'

NET = """
name: "one {name}"
layer {{
  name: "data" type: "Data" top: "data" top: "label" data_param {{ source: "given" batch_size: 3 }}
}}
layer {{
  name: "before" type: "Convolution" bottom: "data" top: "before"
  convolution_param {{ num_output: 4 kernel_size: 1 weight_filler {{ type: "gaussian" std: 1 }} }}
}}
{layers}
layer {{
  name: "after" type: "InnerProduct" bottom: "top" top: "after"
  inner_product_param {{ num_output: 3 weight_filler {{ type: "gaussian" std: 0.5 }} }}
}}
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "after" bottom: "label" {loss} }}
"""

JOINS = {
    "Concat": """
layer { name: "left" type: "ReLU" bottom: "before" top: "left" }
layer { name: "join" type: "Concat" bottom: "left" bottom: "before" top: "top" }""",
    "Eltwise": """
layer { name: "left" type: "ReLU" bottom: "before" top: "left" }
layer {
  name: "join" type: "Eltwise" bottom: "left" bottom: "before" top: "top"
  eltwise_param { operation: SUM coeff: 0.5 coeff: -2 }
}""",
    "Mul": """
layer { name: "pool" type: "Pooling" bottom: "before" top: "pool"
  pooling_param { pool: AVE global_pooling: true } }
layer { name: "join" type: "Mul" bottom: "before" bottom: "pool" top: "mul" }
layer { name: "squeeze" type: "Squeeze" bottom: "pool" top: "gone" squeeze_param { axis: [-1, 2] } }
layer { name: "wide" type: "BroadcastMul" bottom: "gone" bottom: "mul" top: "wide" }
layer { name: "more" type: "Axpy" bottom: "gone" bottom: "wide" bottom: "before" top: "top" }""",
    "ChannelScale": """
layer { name: "one" type: "Convolution" bottom: "before" top: "one" convolution_param {
  num_output: 1 kernel_size: 1 weight_filler { type: "gaussian" std: 1 } } }
layer { name: "join" type: "ChannelScale" bottom: "before" bottom: "one" top: "top" }""",
    "Scale by a bottom": """
layer { name: "left" type: "ReLU" bottom: "before" top: "left" }
layer {
  name: "join" type: "Scale" bottom: "before" bottom: "left" top: "scaled"
  scale_param { axis: 0 bias_term: true }
}
layer { name: "add" type: "Bias" bottom: "scaled" bottom: "left" top: "top" bias_param { axis: 0 } }""",
    "BatchNorm in place": """
layer { name: "norm" type: "BatchNorm" bottom: "before" top: "before" }
layer { name: "scale" type: "Scale" bottom: "before" top: "before" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "before" top: "before" }
layer { name: "top" type: "Split" bottom: "before" top: "top" }""",
    "windows of volumes": """
layer {
  name: "volume" type: "Reshape" bottom: "before" top: "volume"
  reshape_param { shape { dim: 0 dim: 1 dim: 4 dim: 5 dim: 6 } }
}
layer {
  name: "conv" type: "Convolution3D" bottom: "volume" top: "conv" convolution3d_param {
    num_output: 2 kernel_size: 2 kernel_depth: 2 temporal_pad: 1 weight_filler { type: "xavier" } }
}
layer {
  name: "max" type: "Pooling3D" bottom: "conv" top: "max" pooling3d_param {
    kernel_size: 2 kernel_l: 2 stride_l: 2 }
}
layer {
  name: "mean" type: "PoolingND" bottom: "max" top: "mean" pooling_nd_param {
    pool: AVE kernel_size: 2 pad: 1 stride: 2 }
}
layer {
  name: "spread" type: "Deconvolution3D" bottom: "mean" top: "top" convolution3d_param {
    num_output: 2 kernel_size: 2 kernel_depth: 2 weight_filler { type: "xavier" } }
}""",
    "places that are channels and samples": """
layer { name: "wide" type: "DepthToSpace" bottom: "before" top: "wide"
  depth_to_space_param { block_size: 2 data_format: "CRD" } }
layer { name: "deep" type: "SpaceToDepth" bottom: "wide" top: "deep"
  space_to_depth_param { block_size: 2 data_format: "NCHW" } }
layer { name: "many" type: "SpaceToBatchND" bottom: "deep" top: "many"
  space_to_batch_nd_param { block_shape: [2, 2, 3] paddings: [0, 0, 1, 0, 2, 1] } }
layer { name: "top" type: "BatchToSpaceND" bottom: "many" top: "top"
  batch_to_space_nd_param { block_shape: [2, 2, 3] crops: [1, 0, 0, 1, 0, 2] } }""",
    "Split": """
layer { name: "two" type: "Split" bottom: "before" top: "one" top: "other" }
layer { name: "join" type: "Concat" bottom: "one" bottom: "other" top: "top" }""",
    "a shared parameter": """
layer {
  name: "first" type: "Convolution" bottom: "before" top: "first" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 4 kernel_size: 1 weight_filler { type: "gaussian" std: 0.5 } }
}
layer {
  name: "second" type: "Convolution" bottom: "first" top: "top" param { name: "w" } param { name: "b" }
  convolution_param { num_output: 4 kernel_size: 1 }
}""",
    "in place": """
layer { name: "leak" type: "ReLU" bottom: "before" top: "before" relu_param { negative_slope: 0.2 } }
layer { name: "drop" type: "Dropout" bottom: "before" top: "before" }
layer { name: "top" type: "Split" bottom: "before" top: "top" }""",
}

LOSSES = {
    "normalised by valid labels": "loss_param { ignore_label: 1 }",
    "normalised by all labels": "loss_param { ignore_label: 1 normalization: FULL }",
    "normalised by the batch": "loss_param { normalization: BATCH_SIZE }",
    "not normalised": "loss_param { normalization: NONE }",
    "weighted": "loss_weight: 0.3",
    "weighted by class": "loss_param { weight_by_label_freqs: true class_weighting: [0.5, 2, 1.5] }",
}


def nets() -> dict[str, str]:
    found = {}
    for name, parameters in LAYERS.items():
        kind = name.split()[0]
        layer = f'layer {{ name: "it" type: "{kind}" bottom: "before" top: "top" {parameters} }}'
        found[name] = NET.format(name=name, layers=layer.replace("FILL", FILL), loss="")
    for name, layers in JOINS.items():
        found[name] = NET.format(name=name, layers=layers, loss="")
    plain = 'layer { name: "it" type: "ReLU" bottom: "before" top: "top" }'
    for name, loss in LOSSES.items():
        found[f"SoftmaxWithLoss {name}"] = NET.format(name=name, layers=plain, loss=loss)
    return found


NETS = nets()
Losses = Callable[[], float]


def trainer(runtime: demitasse.Runtime, folder: Path, net: str, rate: float, passes: int = 1):
    random = np.random.default_rng(7)
    samples = {"data": random.normal(size=(3, 2, 5, 6)), "label": np.array([2, 0, 1])}
    (folder / "net.prototxt").write_text(net)
    (folder / "solver.prototxt").write_text(
        f'net: "net.prototxt" base_lr: {rate} lr_policy: "fixed" max_iter: 1 random_seed: 5 '
        f"iter_size: {passes}"
    )
    return runtime.trainer(folder / "solver.prototxt", precision="f64", data={"train": samples})


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("name", NETS)
def test_the_gradient_is_the_slope_of_the_loss(tmp_path: Path, name: str, kernels: str) -> None:
    """With a rate of 1 and no momentum, a step moves each parameter by its gradient."""
    plugins = ["caffe", "onnx", "datasets", "training", "snapshots", kernels, "reference"]
    with demitasse.compose(plugins=list(dict.fromkeys(plugins))) as runtime:
        moving = trainer(runtime, tmp_path, NETS[name], rate=1.0)
        standing = trainer(runtime, tmp_path, NETS[name], rate=0.0)
        before = {k: [a.copy() for a in v] for k, v in moving.net.params.items()}
        moving.step()
        checked = 0
        slots = standing.net.plan.slots
        trained = {owner for slot in slots if slot.trainable for owner in slot.owners}
        for layer, arrays in standing.net.params.items():
            for number, array in enumerate(arrays):
                if (layer, number) not in trained:
                    continue
                moved = moving.net.params[layer][number]
                gradient = (before[layer][number] - moved).reshape(-1)
                for i in np.random.default_rng(3).permutation(array.size)[:5]:
                    slope = difference(standing, array, np.unravel_index(i, array.shape))
                    assert gradient[i] == pytest.approx(slope, rel=1e-5, abs=2e-9), (layer, number, i)
                    checked += 1
        assert checked >= 16


def difference(trainer, array: np.ndarray, where: tuple[np.intp, ...]) -> float:
    """The slope of the loss in one parameter. The data has one batch; the iteration is set back, so
    that dropout draws the same mask."""
    kept, losses = array[where], []
    for step in (H, -H):
        array[where] = kept + step
        trainer.iteration = 0
        losses.append(trainer.step().loss)
    array[where] = kept
    return (losses[0] - losses[1]) / (2 * H)


def test_gradients_of_several_passes_add_up_to_the_mean(tmp_path: Path) -> None:
    with demitasse.compose(
        plugins=["caffe", "datasets", "training", "snapshots", "reference"]
    ) as runtime:
        once = trainer(runtime, tmp_path, NETS["Convolution"], rate=1.0)
        twice = trainer(runtime, tmp_path, NETS["Convolution"], rate=1.0, passes=2)
        once.step()
        twice.step()
        for layer, arrays in once.net.params.items():
            for mine, theirs in zip(arrays, twice.net.params[layer], strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12)
