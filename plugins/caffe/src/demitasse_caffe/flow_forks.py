"""What forks of Caffe for optical flow and disparity have beyond Caffe."""

from __future__ import annotations

from demitasse_caffe.forks import Fields, Fork

FLOWNET = Fork(
    "FlowNet's fork",
    fields=(
        Fields("LayerParameter", "reshape_every_iter"),
        Fields("CorrelationParameter", "do_abs", instead="nor is it in the fork"),
        Fields("ResampleParameter", "factor", instead="nor is it in the fork"),
        Fields(
            "DataParameter",
            "block_size disk_reader_threads rand_permute_order rand_permute_seed verbose",
        ),
        Fields("DataParameter", "permute_every_iter", "samples change places", idle="0"),
        Fields("DataParameter", "preselection_file", "it leaves out samples"),
        Fields(
            "DataParameter",
            "rand_permute",
            "samples are shuffled; shuffle: true does that here",
            idle="false",
        ),
        Fields("DataParameter", "range_end", "it leaves out samples", idle="-1"),
        Fields("DataParameter", "range_start", "it leaves out samples; rand_skip is near", idle="0"),
        Fields("DataParameter", "slice_point", "a sample is cut into several tops"),
        Fields(
            "DataParameter",
            "subtract",
            "it is taken from the samples; give mean_value in transform_param",
        ),
    ),
    types=(
        "BlackAugmentation CustomData DisparityData FloatReader FloatWriter FlowAugmentation "
        "GenerateAugmentationParameters ImgReader ImgWriter PFMWriter"
    ),
)
