"""What forks of Caffe have beyond Caffe: fields of its messages, words, layer types and policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Fields:
    """Fields of one of Caffe's messages, their names separated by spaces.

    ``effect`` says how they change what is computed. It is empty if they change nothing, or change
    something only in combination with another field, which is then reported; with the value ``idle``
    they change nothing. ``instead`` says what happens here instead of what a field without effect asks
    for, if that is worth mentioning. Fields of ``training`` change nothing in tests.
    """

    message: str
    names: str
    effect: str = ""
    idle: str = ""
    instead: str = ""
    training: bool = False


@dataclass(frozen=True)
class Fork:
    """A fork, or several that share these features. ``types`` are layer types and ``engines`` values of
    Caffe's ``engine`` fields, separated by spaces; ``policies`` maps each learning rate policy to what
    it does."""

    name: str
    fields: tuple[Fields, ...] = ()
    types: str = ""
    engines: str = ""
    policies: Mapping[str, str] = field(default_factory=dict)


_SPARSE = "it regularises or prunes towards sparse weights"
_SAMPLES = "it changes the samples at random"
_RESIZED = "it changes the size of the samples"
_RELU = "a ReLU follows; add a ReLU layer"

FORKS = (
    Fork(
        "Intel's fork",
        fields=(
            Fields("NetParameter", "compile_net_state engine multinode"),
            Fields(
                "NetParameter",
                "bn_stats_batch_size",
                instead="each worker normalises by all of its samples",
            ),
            Fields("SolverParameter", "engine plateau_winsize"),
            Fields("LayerParameter", "engine mn_activation_param mn_grad_compress_param multinode"),
            Fields("LayerParameter", "quantization_param", instead="nothing is quantised"),
            Fields("BatchNormParameter", "bias_term engine filler"),
            Fields(
                "BatchNormParameter",
                "stats_batch_size",
                instead="each worker normalises by all of its samples",
            ),
            Fields("ConcatParameter", "engine per_fla_fuse"),
            Fields("ConvolutionParameter", "conv_algorithm"),
            Fields("EltwiseParameter", "engine"),
            Fields("InnerProductParameter", "engine"),
            Fields("ReLUParameter", "fuse"),
            Fields("SolverParameter", "disabled_update", "it trains nothing", idle="false"),
            Fields(
                "SolverParameter",
                "local_gw_ratio",
                "it scales the rate by layer, as type 'LARS' does here",
            ),
            Fields(
                "SolverParameter",
                "local_lr_auto",
                "it scales the rate by layer, as type 'LARS' does here",
                idle="false",
            ),
            Fields("SolverParameter", "test_offset", "tests come later by so many iterations", idle="0"),
            Fields(
                "TransformationParameter",
                "bgr2rgb",
                "the order of the channels is reversed",
                idle="false",
            ),
            Fields("TransformationParameter", "pad", _RESIZED, idle="0"),
            Fields("BatchNormParameter", "relu", _RELU, idle="false"),
            Fields(
                "BatchNormParameter",
                "use_weight_bias",
                "a scale and a bias follow; add a Scale layer with bias_term",
                idle="false",
            ),
            Fields(
                "ConvolutionParameter",
                "coeff",
                "the sum with another layer follows; add an Eltwise layer",
            ),
            Fields(
                "ConvolutionParameter",
                "fusion_type",
                "the sum with another layer follows; add an Eltwise layer",
                idle="NONE_FUSION",
            ),
            Fields("ConvolutionParameter", "negative_slope", _RELU),
            Fields("ConvolutionParameter", "relu", _RELU, idle="false"),
            Fields("DataParameter", "side", "it makes labels of boxes for YOLO"),
            Fields("FillerParameter", "scale", "it multiplies what is drawn", idle="1"),
            Fields("ImageDataParameter", "min_height min_width", _RESIZED, idle="0"),
            Fields("InnerProductParameter", "negative_slope", _RELU),
            Fields("InnerProductParameter", "relu", _RELU, idle="false"),
            Fields("PoolingParameter", "avg_include_pad", "means leave out the padding", idle="true"),
            Fields("PoolingParameter", "axis", "it pools other axes than the last two", idle="1"),
            Fields(
                "PoolingParameter",
                "kernel_size_3d pad_3d stride_3d",
                "it pools three axes, Pooling here two",
            ),
            Fields(
                "ReshapeParameter", "pixelshuffler", "it moves channels into rows and columns", idle="1"
            ),
        ),
        types="MKLConvolution MKLLRN MKLPooling MKLReLU",
        engines="MKL2017 MKLDNN",
    ),
    Fork(
        "NVIDIA's fork",
        fields=(
            Fields(
                "NetParameter",
                (
                    "default_backward_math default_backward_type default_conv_algos_override "
                    "default_cudnn_math_override default_forward_math default_forward_type "
                    "eltwise_mem_sharing global_grad_scale global_grad_scale_adaptive reduce_buckets"
                ),
            ),
            Fields(
                "SolverParameter",
                (
                    "max_momentum max_weight_decay momentum_power "
                    "solver_data_type store_blobs_in_old_format test_and_snapshot_last_epochs "
                    "weight_decay_power"
                ),
            ),
            Fields(
                "LayerParameter",
                (
                    "backward_math backward_type cudnn_math_override debug forward_math forward_type "
                    "trt_param"
                ),
            ),
            Fields(
                "TransformationParameter",
                "display forward_packing num_labels random_seed use_gpu_transform",
            ),
            Fields("ConvolutionParameter", "conv_algos_override cudnn_convolution_algo_seeker"),
            Fields("DataParameter", "cache parser_threads precache threads"),
            Fields("DropoutParameter", "engine random_seed"),
            Fields("ImageDataParameter", "cache precache threads"),
            Fields(
                "SolverParameter",
                "larc_turbo",
                "rates depend on whether gradients point where parameters move",
                idle="false",
            ),
            Fields(
                "SolverParameter",
                "momentum_policy",
                "the momentum changes in the course of training",
                idle="fixed",
            ),
            Fields(
                "SolverParameter",
                "weight_decay_policy",
                "the decay changes in the course of training",
                idle="fixed",
            ),
            Fields(
                "ImageDataParameter",
                "dataset_share_per_node",
                "each node reads a part of the list",
                idle="1",
            ),
            Fields("ImageDataParameter", "short_side", _RESIZED, idle="0"),
            Fields("LossParameter", "label_smoothing", "labels are smoothed over all classes", idle="0"),
        ),
        types="DetectNetTransformation TRT",
    ),
    Fork(
        "SSD's fork",
        fields=(
            Fields("TransformationParameter", "noise_param", _SAMPLES),
            Fields(
                "DetectionOutputParameter",
                "save_output_param",
                instead="the detections are the layer's top",
            ),
            Fields(
                "DetectionEvaluateParameter",
                "name_size_file resize_param",
                instead="boxes overlap as shares of the image",
            ),
            Fields("DetectionOutputParameter", "save_file visualize visualize_threshold"),
            Fields(
                "VideoDataParameter",
                "device_id skip_frames video_file video_type",
                "it shows a camera's or a file's frames one after the other",
            ),
        ),
        policies={"plateau": "where the rate falls once the loss stops falling"},
    ),
    Fork(
        "DeepDetect's fork",
        fields=(
            Fields(
                "DistortionParameter",
                "all_effects brightness contrast hue prob random_order saturation",
                _SAMPLES,
            ),
            Fields("TransformationParameter", "geometry_param", _SAMPLES),
            Fields("ConvolutionParameter", "cudnn_flavor"),
            Fields("NonMaximumSuppressionParameter", "theta"),
            Fields(
                "NonMaximumSuppressionParameter",
                "soft_nms",
                "overlapping boxes lose confidence instead of being removed",
                idle="false",
            ),
            Fields(
                "DetectionOutputParameter",
                "objectness_score",
                "it leaves out what RefineDet's first guess takes for background",
            ),
            Fields(
                "MultiBoxLossParameter",
                "objectness_score",
                "it leaves out what RefineDet's first guess takes for background",
            ),
        ),
    ),
    Fork(
        "the fork of TSN",
        fields=(
            Fields("NetParameter", "mem_param richness"),
            Fields("SolverParameter", "group_id richness"),
            Fields("DataParameter", "shuffle_pool_size", instead="shuffle takes all samples"),
            Fields("TransformationParameter", "original_image", _SAMPLES, idle="false"),
            Fields("VideoDataParameter", "encoded"),
            Fields("ReductionParameter", "k", "it takes the greatest k"),
        ),
    ),
    Fork(
        "SkimCaffe",
        fields=(
            Fields("SolverParameter", "measure_threshold"),
            Fields(
                "ConvolutionParameter",
                "conv_mode dump_activation dump_parameter parameter_sparsity_pattern_histogram",
            ),
            Fields(
                "InnerProductParameter",
                "dump_activation dump_parameter gemm_mode spmdm_transpose_in spmdm_transpose_out",
            ),
            Fields(
                "LayerParameter",
                "connectivity_mode",
                "weights of 0 stay 0",
                idle="CONNECTED",
                training=True,
            ),
            Fields(
                "SolverParameter",
                "block_group_decay breadth_decay kernel_shape_decay",
                _SPARSE,
                idle="0",
            ),
            Fields(
                "SolverParameter",
                (
                    "max_threshold_factor prune_threshold winograd_adjust_threshold "
                    "winograd_sparsity_factor"
                ),
                _SPARSE,
            ),
            Fields("ParamSpec", "block_group_lasso", _SPARSE, training=True),
            Fields(
                "ParamSpec",
                "breadth_decay_mult kernel_shape_decay_mult",
                _SPARSE,
                idle="0",
                training=True,
            ),
            Fields(
                "ParamSpec",
                "regularization_type",
                "each parameter has its own; the solver has one for all",
                training=True,
            ),
        ),
    ),
    Fork(
        "the OpenCL branch",
        fields=(
            Fields("NetParameter", "autotune data_type quantizer reduced_memory_inference"),
            Fields("NetState", "quantizer_mode"),
            Fields("SolverParameter", "data_type device"),
            Fields(
                "LayerParameter",
                (
                    "autotune blobs_quantizer bottom_data_type bottom_quantizer compute_data_type "
                    "device net_quantizer top_data_type top_quantizer"
                ),
            ),
            Fields("BatchNormParameter", "fused_relu", _RELU, idle="false"),
            Fields(
                "MemoryDataParameter", "dim", "it is the shape; give batch_size, channels, height, width"
            ),
            Fields("ConvolutionParameter", "fuse_type", "other layers follow; add them", idle="UNFUSED"),
            Fields("LRNParameter", "fuse_type", "other layers follow; add them", idle="UNFUSED"),
            Fields("PoolingParameter", "dilation", "the window has gaps", idle="1"),
        ),
        engines="INTEL_SPATIAL LIBDNN SPATIAL",
    ),
    Fork(
        "C3D",
        fields=(
            Fields("DataParameter", "show_data"),
            Fields("ImageDataParameter", "show_data"),
            Fields("VideoDataParameter", "show_data"),
            Fields(
                "VideoDataParameter",
                "max_sampling_rate use_sampling_rate_jitter",
                "each sample's frames are apart at random",
            ),
            Fields(
                "VideoDataParameter",
                "num_of_labels use_multiple_label",
                "a sample has several labels",
            ),
        ),
    ),
    Fork(
        "Synopsys's fork",
        fields=(
            Fields(
                "BatchNormParameter",
                "add_eps_before_sqrt",
                "eps is added to the deviation",
                idle="true",
            ),
        ),
        types=("BroadcastTo GatherV2 MirrorPad StridedSlice"),
    ),
    Fork(
        "caffe-windows",
        fields=(
            Fields(
                "SolverParameter", "clamp_weights_lower clamp_weights_upper", "it bounds the weights"
            ),
            Fields("SolverParameter", "clip_weights", "it bounds the weights", idle="-1"),
            Fields(
                "TransformationParameter",
                "center_crop",
                "crops are from the middle in training, too",
                idle="false",
            ),
            Fields("TransformationParameter", "erase_ratio", _SAMPLES, idle="0"),
            Fields("AccuracyParameter", "min_is_better", "the least value wins", idle="false"),
            Fields("BatchNormParameter", "disable_mean", "the mean stays", idle="false"),
            Fields("BatchNormParameter", "disable_variance", "the variance stays", idle="false"),
            Fields("DropoutParameter", "sqrt_scale", "kept values grow less", idle="false"),
            Fields("ParameterParameter", "blob_filler", "the parameter is filled at the start"),
            Fields("ScaleParameter", "max_value min_value", "it bounds the factors"),
            Fields("SoftmaxParameter", "class_weight", "classes have weights; an InfogainLoss has them"),
            Fields("SoftmaxParameter", "cutting_point", "it bounds the loss"),
            Fields("SoftmaxParameter", "hard_mining_label", "a part of the samples counts"),
            Fields("SoftmaxParameter", "hard_ratio", "a part of the samples counts", idle="1"),
            Fields(
                "SoftmaxParameter",
                "label_smooth_factor",
                "labels count in part for all classes",
                idle="0",
            ),
            Fields("SoftmaxParameter", "normalize_type", "it is another function", idle="Softmax"),
        ),
        types=("GeneralContrastiveLoss GeneralTripletLoss InnerDistance Insanity MultiLabelImageData"),
    ),
    Fork(
        "the fork of caffenet-benchmark",
        fields=(
            Fields("ResizeParameter", "center_object", _SAMPLES, idle="false"),
            Fields("ResizeParameter", "max_angle", "it turns samples at random", idle="0"),
        ),
    ),
    Fork(
        "DeBlurNet's fork",
        fields=(Fields("ImageDataParameter", "label", "labels are a second top", idle="false"),),
    ),
    Fork("OpenPose's fork", types="CPMData ImResize Nms"),
    Fork(
        "the fork of LRCN",
        fields=(
            Fields(
                "EltwiseParameter",
                "coeff_blob",
                "a further bottom has a coefficient for each of the others",
                idle="false",
            ),
        ),
    ),
    Fork(
        "DeepLab's older fork",
        fields=(Fields("LayerParameter", "mat_write_param strict_dim"),),
        types="DenseCrf MatWrite UniqueLabel",
    ),
    Fork(
        "CaffeOnSpark",
        fields=(
            Fields(
                "LayerParameter",
                "source_class",
                instead="samples are the arrays that are given; a Data layer reads an LMDB",
            ),
            Fields("MemoryDataParameter", "source share_in_parallel"),
        ),
        types="CoSData",
    ),
    Fork(
        "MyCaffe",
        fields=(
            Fields(
                "SolverParameter",
                "output_average_results snapshot_include_state snapshot_include_weights",
            ),
        ),
    ),
    Fork(
        "the forks of LRCN and Intel",
        fields=(
            Fields(
                "TransformationParameter", "flow", "it mirrors samples as optical flow", idle="false"
            ),
        ),
    ),
    Fork(
        "Poseidon",
        fields=(
            Fields("DataParameter", "shared_file_system"),
            Fields("ImageDataParameter", "shared_file_system"),
        ),
    ),
    Fork(
        "MobileNet-YOLO's fork",
        fields=(
            Fields(
                "AnnotatedDataParameter",
                "train_diffcult",
                "it leaves out difficult objects",
                idle="true",
            ),
            Fields(
                "AnnotatedDataParameter",
                "difficult_label_warmup",
                "it leaves out difficult objects at first",
                idle="false",
            ),
        ),
        types="AssistedExcitation GaussianYolov3 LaneData SegmentationEvaluate YoloSeg",
    ),
    Fork(
        "TextBoxes++'s fork",
        fields=tuple(
            Fields(message, "use_polygon", "boxes are quadrilaterals", idle="false")
            for message in (
                "DetectionEvaluateParameter",
                "DetectionOutputParameter",
                "MultiBoxLossParameter",
            )
        ),
    ),
    Fork(
        "the forks of Mask R-CNN",
        fields=(
            Fields(
                "LayerParameter",
                "roi_align_param",
                "cells are means of places within them; ROIAlign here is Cascade R-CNN's, with "
                "roi_pooling_param",
            ),
        ),
    ),
    Fork("the fork of PDB-ConvLSTM", types="ConvLSTM"),
    Fork(
        "the fork of Ganin and Lempitsky",
        fields=(
            Fields(
                "DataParameter",
                "cursor",
                "samples come in an order drawn at random; shuffle: true does that here",
                idle="ORDINARY",
            ),
        ),
    ),
    Fork("OpenVINO's fork", types="DetectionOutputExtended GRN"),
    Fork("the fork of Caffe Neural Tool", types="Affinity ConnectedComponent MalisLoss MergeCrop"),
    Fork(
        "the fork of Faster R-CNN in C++",
        types="FrcnnAnchorTarget FrcnnProposal FrcnnProposalTarget FrcnnRoiData",
    ),
    Fork(
        "the forks with CTC",
        types="CTCBeamSearchDecoder CTCDecoder ReverseTime",
    ),
    Fork(
        "MS-CNN's fork",
        types="BboxAccuracy BoxOutput DecodeBBox DetectionAccuracy ImageGtData ProposalTarget",
    ),
    Fork("the forks of MS-CNN and caffe-yolo", types="DetectionLoss"),
    Fork("the fork of caffe-yolo", types="BoxData"),
    Fork("the fork of Pfister's heatmaps", types="DataHeatmap"),
    Fork("MNC's fork", types="MaskPooling MaskResize ROIWarping"),
    Fork("the fork of CRF-RNN", types="MultiStageMeanfield"),
    Fork("Ristretto", types="ConvolutionRistretto DeconvolutionRistretto FcRistretto LRNRistretto"),
    Fork("the fork of visual-concepts", types="MIL MILData"),
    Fork("the fork of JAANet and ARL", types="Combination Division MultiStageMeanfieldAU3"),
    Fork("DRML's fork", types="Batch Box MultiSigmoidCrossEntropyLoss MultilabelImageData Splice"),
    Fork("the fork of deep adaptation networks", types="MMDLoss"),
    Fork("the fork for unsupervised depth estimation", types="AbsLoss Warping"),
    Fork("TSN's fork", types="Gather SegData"),
    Fork("the fork of DeepSkeleton", types="ImageMultLabelData Quantize Rescale"),
)
