"""Fields and words that forks of Caffe have in Caffe's own messages, and what each does there; whose the
layer types are that are theirs alone.

A field that only says how fast, where or how precisely a fork computes is read over, and noted. One that
changes what is computed is an error that says so, unless its value is the one that changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_IDLE: dict[str, dict[str, str]] = {
    "Intel's fork": {
        "NetParameter": "bn_stats_batch_size compile_net_state engine multinode",
        "SolverParameter": "engine plateau_winsize stageiter stagelr",
        "LayerParameter": (
            "engine mn_activation_param mn_grad_compress_param multinode quantization_param"
        ),
        "BatchNormParameter": "bias_filler bias_term engine filler stats_batch_size",
        "ConcatParameter": "engine per_fla_fuse",
        "ConvolutionParameter": "conv_algorithm",
        "EltwiseParameter": "engine",
        "InnerProductParameter": "engine",
        "ReLUParameter": "fuse",
    },
    "NVIDIA's fork": {
        "NetParameter": (
            "default_backward_math default_backward_type default_conv_algos_override "
            "default_cudnn_math_override default_forward_math default_forward_type eltwise_mem_sharing "
            "global_grad_scale global_grad_scale_adaptive reduce_buckets"
        ),
        "SolverParameter": (
            "larc_eta larc_policy larc_turbo max_momentum max_weight_decay momentum_power "
            "solver_data_type store_blobs_in_old_format test_and_snapshot_last_epochs "
            "weight_decay_power"
        ),
        "LayerParameter": (
            "backward_math backward_type cudnn_math_override debug forward_math forward_type trt_param"
        ),
        "TransformationParameter": (
            "allow_upscale display forward_packing interpolation_algo_down interpolation_algo_up "
            "num_labels random_seed use_gpu_transform"
        ),
        "BatchNormParameter": "scale_filler",
        "ConvolutionParameter": "conv_algos_override cudnn_convolution_algo_seeker",
        "DataParameter": "cache parser_threads precache threads",
        "DropoutParameter": "engine random_seed",
        "ImageDataParameter": "cache precache threads",
    },
    "SSD's fork": {"SolverParameter": "ap_version eval_type show_per_class_result"},
    "the fork of TSN": {
        "NetParameter": "mem_param",
        "SolverParameter": "group_id richness",
    },
    "SkimCaffe": {
        "SolverParameter": "measure_threshold",
        "ConvolutionParameter": (
            "conv_mode dump_activation dump_parameter parameter_sparsity_pattern_histogram"
        ),
        "InnerProductParameter": (
            "dump_activation dump_parameter gemm_mode spmdm_transpose_in spmdm_transpose_out"
        ),
    },
    "the OpenCL branch": {
        "NetParameter": "autotune data_type quantizer reduced_memory_inference",
        "NetState": "quantizer_mode",
        "SolverParameter": "data_type device",
        "LayerParameter": (
            "autotune blobs_quantizer bottom_data_type bottom_quantizer compute_data_type device "
            "net_quantizer top_data_type top_quantizer"
        ),
    },
    "FlowNet's fork": {
        "LayerParameter": "reshape_every_iter",
        "DataParameter": "block_size disk_reader_threads rand_permute_order rand_permute_seed verbose",
    },
    "C3D": {"DataParameter": "show_data", "ImageDataParameter": "show_data"},
}
"""Fields without effect on results, or with one only beside another field, which is then told."""

_SPARSE = "it regularises or prunes towards sparse weights"
_SAMPLES = "it changes the samples at random"
_RESIZED = "it changes the size of the samples"
_SIDES = "it pads one side more than the other; pad_h and pad_w are of both"
_RELU = "a ReLU follows; add a ReLU layer"
_3D = "a video's third axis; give kernel_size, stride and pad a number for each axis instead"

_ACTIVE: dict[str, dict[str, dict[str, tuple[str, str]]]] = {
    "Intel's fork": {
        "SolverParameter": {
            "disabled_update": ("false", "it trains nothing"),
            "local_gw_ratio": ("", "it scales the rate by layer, as type 'LARS' does here"),
            "local_lr_auto": ("false", "it scales the rate by layer, as type 'LARS' does here"),
            "test_offset": ("0", "tests come later by so many iterations"),
        },
        "TransformationParameter": {
            "bgr2rgb": ("false", "the channels change places"),
            "flow": ("false", "it mirrors samples as optical flow"),
            "pad": ("0", _RESIZED),
            "random_aspect_ratio_param": ("", _SAMPLES),
            "random_resize_param": ("", _SAMPLES),
        },
        "BatchNormParameter": {
            "relu": ("false", _RELU),
            "use_weight_bias": ("false", "a scale and a bias follow; add a Scale layer with bias_term"),
        },
        "ConvolutionParameter": {
            "coeff": ("", "the sum with another layer follows; add an Eltwise layer"),
            "fusion_type": ("NONE_FUSION", "the sum with another layer follows; add an Eltwise layer"),
            "negative_slope": ("", _RELU),
            "relu": ("false", _RELU),
        },
        "DataParameter": {"side": ("", "it makes labels of boxes for YOLO")},
        "FillerParameter": {"scale": ("1", "it multiplies what is drawn")},
        "ImageDataParameter": {"min_height": ("0", _RESIZED), "min_width": ("0", _RESIZED)},
        "InnerProductParameter": {"negative_slope": ("", _RELU), "relu": ("false", _RELU)},
        "LossParameter": {
            "pre_fixed_normalizer": ("1", "it divides the loss; give 1 / it as loss_weight, with NONE")
        },
        "PoolingParameter": {
            "avg_include_pad": ("true", "means leave out the padding"),
            "axis": ("1", "it pools other axes than the last two"),
            "kernel_size_3d": ("", "it pools three axes, Pooling here two"),
            "pad_3d": ("", "it pools three axes, Pooling here two"),
            "stride_3d": ("", "it pools three axes, Pooling here two"),
        },
        "ReshapeParameter": {"pixelshuffler": ("1", "it moves channels into rows and columns")},
    },
    "NVIDIA's fork": {
        "SolverParameter": {
            "larc": ("false", "it scales the rate by layer, as type 'LARS' does here"),
            "min_lr": ("0", "the rate falls no lower"),
            "momentum_policy": ("fixed", "the momentum changes in the course of training"),
            "rampup_interval": ("0", "the rate rises first, by the square; warmup_iter does in a line"),
            "rampup_lr": ("", "the rate rises first, by the square; warmup_start_lr does in a line"),
            "weight_decay_policy": ("fixed", "the decay changes in the course of training"),
        },
        "TransformationParameter": {
            "horizontal_stretch_lower": ("1", _SAMPLES),
            "horizontal_stretch_upper": ("1", _SAMPLES),
            "img_rand_resize_lower": ("0", _SAMPLES),
            "img_rand_resize_upper": ("0", _SAMPLES),
            "rand_resize_ratio_lower": ("0", _SAMPLES),
            "rand_resize_ratio_upper": ("0", _SAMPLES),
            "vertical_stretch_lower": ("1", _SAMPLES),
            "vertical_stretch_upper": ("1", _SAMPLES),
        },
        "BatchNormParameter": {
            "scale_bias": ("false", "a scale and a bias follow; add a Scale layer with bias_term")
        },
        "ELUParameter": {"lambda": ("1", "it multiplies the values; add a Power layer with scale")},
        "ImageDataParameter": {
            "dataset_share_per_node": ("1", "each node reads a part of the list"),
            "short_side": ("0", _RESIZED),
        },
        "LossParameter": {"label_smoothing": ("0", "labels count in part for all classes")},
        "PoolingParameter": {
            "torch_pooling": ("false", "the output is rounded down; give round_mode: FLOOR")
        },
    },
    "SSD's fork": {
        "TransformationParameter": {
            "crop_h": ("0", "crops are no squares"),
            "crop_w": ("0", "crops are no squares"),
            "distort_param": ("", _SAMPLES),
            "emit_constraint": ("", "it selects boxes"),
            "expand_param": ("", _SAMPLES),
            "noise_param": ("", _SAMPLES),
            "resize_param": ("", _RESIZED),
        },
    },
    "the fork of TSN": {
        "TransformationParameter": {
            "fix_crop": ("false", _SAMPLES),
            "is_flow": ("false", "it mirrors samples as optical flow"),
            "max_distort": ("", _SAMPLES),
            "more_fix_crop": ("false", _SAMPLES),
            "multi_scale": ("false", _SAMPLES),
            "scale_ratios": ("", _SAMPLES),
        },
        "ReductionParameter": {"k": ("", "it takes the greatest k")},
    },
    "SegNet's fork": {
        "DropoutParameter": {"sample_weights_test": ("false", "it drops values in tests, too")},
        "LossParameter": {
            "class_weighting": ("", "classes have weights; an InfogainLoss has them"),
            "weight_by_label_freqs": ("false", "classes have weights; an InfogainLoss has them"),
        },
    },
    "Faster R-CNN's fork": {
        "DropoutParameter": {
            "scale_train": ("true", "kept values stay as they are in training, and grow less in tests")
        },
    },
    "FlowNet's fork": {
        "DataParameter": {
            "permute_every_iter": ("0", "samples change places"),
            "preselection_file": ("", "it leaves out samples"),
            "rand_permute": ("false", "samples change places; shuffle: true does that here"),
            "range_end": ("-1", "it leaves out samples"),
            "range_start": ("0", "it leaves out samples; rand_skip is near"),
            "slice_point": ("", "a sample is cut into several tops"),
            "subtract": ("", "it is taken from the samples; give mean_value in transform_param"),
        },
    },
    "the OpenCL branch": {
        "BatchNormParameter": {"fused_relu": ("false", _RELU)},
        "ConvolutionParameter": {"fuse_type": ("UNFUSED", "other layers follow; add them")},
        "LRNParameter": {"fuse_type": ("UNFUSED", "other layers follow; add them")},
        "PoolingParameter": {"dilation": ("1", "the window has gaps")},
    },
    "Synopsys's fork": {
        "BatchNormParameter": {"add_eps_before_sqrt": ("", "eps is added elsewhere")},
        "ConvolutionParameter": dict.fromkeys(("pad_b", "pad_l", "pad_r", "pad_t"), ("", _SIDES)),
        "PoolingParameter": dict.fromkeys(("pad_b", "pad_l", "pad_r", "pad_t"), ("", _SIDES)),
    },
    "DeepLab's fork": {
        "TransformationParameter": {
            "crop_height": ("0", "crops are no squares"),
            "crop_width": ("0", "crops are no squares"),
            "scale_factors": ("", _SAMPLES),
        },
        "ConvolutionParameter": {
            "hole": ("1", "it is what Caffe calls dilation"),
            "hole_h": ("1", "it is what Caffe calls dilation"),
            "hole_w": ("1", "it is what Caffe calls dilation"),
        },
    },
    "C3D": {
        "ConvolutionParameter": {
            "filter_group": ("1", "it groups filters"),
            "kernel_depth": ("", _3D),
            "temporal_pad": ("", _3D),
            "temporal_stride": ("", _3D),
        },
        "ImageDataParameter": {
            "new_length": ("", "samples are videos"),
            "sampling_rate": ("", "samples are videos"),
            "use_temporal_jitter": ("false", "samples are videos"),
        },
        "PoolingParameter": {
            "kernel_depth": ("", "it pools three axes, Pooling here two"),
            "temporal_stride": ("", "it pools three axes, Pooling here two"),
        },
    },
    "caffe-windows": {
        "SolverParameter": {
            "clamp_weights_lower": ("", "it bounds the weights"),
            "clamp_weights_upper": ("", "it bounds the weights"),
            "clip_weights": ("-1", "it bounds the weights"),
        },
        "TransformationParameter": {
            "center_crop": ("false", "crops are from the middle in training, too"),
            "erase_ratio": ("0", _SAMPLES),
        },
        "AccuracyParameter": {"min_is_better": ("false", "the least value wins")},
        "BatchNormParameter": {
            "disable_mean": ("false", "the mean stays"),
            "disable_variance": ("false", "the variance stays"),
        },
        "DropoutParameter": {"sqrt_scale": ("false", "kept values grow less")},
        "InnerProductParameter": {"normalize": ("false", "weights are of length 1")},
        "ParameterParameter": {"blob_filler": ("", "the parameter is filled at the start")},
        "ScaleParameter": {
            "max_value": ("", "it bounds the factors"),
            "min_value": ("", "it bounds the factors"),
        },
        "SoftmaxParameter": {
            "class_weight": ("", "classes have weights; an InfogainLoss has them"),
            "cutting_point": ("", "it bounds the loss"),
            "hard_mining_label": ("", "a part of the samples counts"),
            "hard_ratio": ("1", "a part of the samples counts"),
            "label_smooth_factor": ("0", "labels count in part for all classes"),
            "normalize_type": ("Softmax", "it is another function"),
        },
    },
    "SkimCaffe": {
        "LayerParameter": {"connectivity_mode": ("CONNECTED", "weights of 0 stay 0")},
        "SolverParameter": dict.fromkeys(
            ("block_group_decay", "breadth_decay", "kernel_shape_decay"), ("0", _SPARSE)
        )
        | dict.fromkeys(
            (
                *("max_threshold_factor", "prune_threshold", "winograd_adjust_threshold"),
                "winograd_sparsity_factor",
            ),
            ("", _SPARSE),
        ),
        "ParamSpec": {
            "block_group_lasso": ("", _SPARSE),
            "breadth_decay_mult": ("0", _SPARSE),
            "kernel_shape_decay_mult": ("0", _SPARSE),
            "regularization_type": ("", "each parameter has its own; the solver has one for all"),
        },
    },
}
"""Fields with an effect on results: the value with which they have none, if any, and the effect."""

_INSTEAD = {
    "bn_stats_batch_size": "each worker normalises by all of its samples",
    "eval_type": "tests tell the means of the net's outputs",
    "quantization_param": "nothing is quantised",
    "stats_batch_size": "each worker normalises by all of its samples",
}
"""What is done instead of what a field without effect asks for, where that is worth a word."""

_ENGINES = {
    "INTEL_SPATIAL": "the OpenCL branch",
    "LIBDNN": "the OpenCL branch",
    "MKL2017": "Intel's fork",
    "MKLDNN": "Intel's fork",
    "SPATIAL": "the OpenCL branch",
}
"""Words for Caffe's own ``engine`` fields."""

POLICIES = {
    "multifixed": "Intel's fork, with the rates of stagelr up to the iterations of stageiter",
    "plateau": "SSD's fork, where the rate falls once the loss does no more",
}
"""Whose a ``lr_policy`` is that Caffe does not have."""

_LAYERS = {
    "SSD's fork": (
        "AnnotatedData DetectionEvaluate DetectionOutput MultiBoxLoss Normalize Permute PriorBox"
    ),
    "Faster R-CNN's fork": "ROIPooling SmoothL1Loss",
    "R-FCN's fork": "BoxAnnotatorOHEM PSROIPooling SmoothL1LossOHEM SoftmaxWithLossOHEM",
    "SegNet's fork": "DenseImageData Upsample",
    "DeepLab's fork": "ImageSegData",
    "the forks of DeepLab and PSPNet": "Interp SegAccuracy",
    "the forks of SegNet, PSPNet and TSN": "BN",
    "OpenPose's fork": "CPMData ImResize Nms",
    "the forks of SSD and C3D": "VideoData",
    "C3D and its successors": "Convolution3D Deconvolution3D Pooling3D",
    "the fork of Center Loss": "CenterLoss",
    "SphereFace's fork": "MarginInnerProduct",
    "NVIDIA's fork": "DetectNetTransformation TRT",
    "Intel's fork": "EvalDetection MKLConvolution MKLLRN MKLPooling MKLReLU RegionLoss Reorg",
    "FlowNet's fork": "Correlation CustomData DataAugmentation Downsample FlowWarp L1Loss Resample",
}
TYPES = {name: owner for owner, names in _LAYERS.items() for name in names.split()}
"""Whose a layer type is that Caffe does not have."""


@dataclass(frozen=True)
class ForkField:
    """A field that a fork has in a message of Caffe's; ``effect`` is empty where it changes nothing."""

    owner: str
    effect: str = ""
    idle_value: str = ""

    def has_effect(self, value: str | None) -> bool:
        """Whether the field changes what is computed, with a value as it is written."""
        return bool(self.effect) and (value is None or _plain(value) != _plain(self.idle_value))


_FIELDS = {
    (message, name): ForkField(owner, effect, idle)
    for owner, messages in _ACTIVE.items()
    for message, fields in messages.items()
    for name, (idle, effect) in fields.items()
} | {
    (message, name): ForkField(owner)
    for owner, messages in _IDLE.items()
    for message, names in messages.items()
    for name in names.split()
}


def fork_field(message: str, name: str) -> ForkField | None:
    """What a fork has under a name in a message of Caffe's, None where none is known to."""
    return _FIELDS.get((message.replace("V1LayerParameter", "LayerParameter"), name))


def old_type_owner(folded: str) -> str | None:
    """Whose a V1 layer type is that Caffe does not have, by its name without underscores and case."""
    return next((owner for name, owner in TYPES.items() if name.casefold() == folded), None)


def engine_owner(name: str, value: str) -> str | None:
    """Whose word for an ``engine`` of Caffe's a value is; None for Caffe's own and for other fields."""
    return _ENGINES.get(value) if name == "engine" else None


def notes(path: Path, passed_over: Iterable[tuple[str, str, int]]) -> Iterator[str]:
    """A sentence for each fork about (owner, field, line) of what was read and has no effect here."""
    owners: dict[str, dict[str, list[int]]] = {}
    for owner, name, line in passed_over:
        owners.setdefault(owner, {}).setdefault(name, []).append(line)
    for owner, fields in owners.items():
        told = ", ".join(f"{name} ({_lines(name, lines)})" for name, lines in fields.items())
        yield f"{path}: without effect here, of {owner}: {told}"


def _lines(name: str, lines: list[int]) -> str:
    more = f" and {len(lines) - 1} more" if len(lines) > 1 else ""
    return f"line {lines[0]}{more}" + (f"; {_INSTEAD[name]}" if name in _INSTEAD else "")


def _plain(value: str) -> str | float:
    """A value as it is compared: numbers and truths as such, words without quotes and case."""
    word = value.strip("\"'").casefold()
    word = {"true": "1", "t": "1", "false": "0", "f": "0"}.get(word, word)
    try:
        return float(word)
    except ValueError:
        return word
