"""The numbers printed in Le et al., Involving CPUs into Multi-GPU Deep Learning (2018); None where the
paper withholds a number."""

from __future__ import annotations

from collections.abc import Mapping

BVLC, TRL = "BVLC/Caffe", "TRL/Caffe"
GPUS = (1, 2, 4)

TABLE_2: Mapping[tuple[str, str], tuple[float, float | None, float | None]] = {
    (BVLC, "AlexNet"): (157.2, 174.3, 202.7),
    (BVLC, "GoogLeNet-v1"): (140.0, 151.7, 163.4),
    (BVLC, "VGGNet-16"): (345.6, None, None),
    (TRL, "AlexNet"): (157.4, 163.6, 167.1),
    (TRL, "GoogLeNet-v1"): (140.9, 151.9, 156.7),
    (TRL, "VGGNet-16"): (345.2, None, None),
}
"""Milliseconds per iteration with one, two and four GPUs."""

TABLE_3: Mapping[str, Mapping[str, float]] = {
    BVLC: {
        "broadcast": 20,
        "forward": 50.6,
        "backward": 104,
        "grad-acc": 23,
        "update-param": 5.1,
        "total time": 202.7,
    },
    TRL: {
        "forward": 51.0,
        "backward": 111,
        "broadcast remaining gradients from CPUs": 0.0218,
        "update-param": 5.1,
        "total time": 167.1,
    },
}
"""Milliseconds of each phase: AlexNet with four GPUs."""

LAYERS = tuple(f"Layer {number}" for number in range(8, 0, -1))
DOWN, ADD, UP = "GPU-to-CPU copy (ms)", "accumulation time on CPUs (ms)", "CPU-to-GPU copy (ms)"
TABLE_4: Mapping[str, tuple[float, ...]] = {
    "no. of parameters (million)": (4, 16.8, 37.8, 0.4, 0.7, 0.9, 0.3, 0.03),
    DOWN: (0.760, 3.156, 12.146, 0.133, 0.174, 0.275, 0.066, 0.014),
    ADD: (1.263, 4.441, 13.074, 0.285, 0.465, 0.578, 0.155, 0.018),
    UP: (1.786, 2.568, 5.538, 0.064, 0.095, 0.123, 0.041, 0.007),
}
"""The layers of AlexNet with four GPUs."""

TABLE_5: Mapping[str, tuple[float, float]] = {
    "AlexNet": (6863, 6359),
    "GoogLeNet-v1": (6095, 5991),
    "VGGNet-16": (7274, 6191),
}
"""MB on a GPU, for BVLC/Caffe and TRL/Caffe."""

LARGEST = {BVLC: 94, TRL: 103}
"""The largest minibatch of VGGNet-16, in images (section 5.2.4)."""

SPEEDUPS: Mapping[str, float] = {
    "AlexNet": 1.21,
    "GoogLeNet-v1": 1.04,
    "VGGNet-16": 1.21,
    "ResNet-152": 1.07,
}
"""Speedup of TRL/Caffe over BVLC/Caffe with four GPUs (sections 5.2.1 and 5.3)."""

LARGEST_CHUNK = 100
"""The largest chunk size in Figure 2."""

BEST_CHUNK = 9
"""The chunk size that Algorithm 1 found for ResNet-152 with step = 10 and range = 5 (section 5.3)."""

TABLE_1: Mapping[str, tuple[int, float]] = {
    "AlexNet": (8, 60),
    "GoogLeNet-v1": (22, 7),
    "VGGNet-16": (16, 138),
    "ResNet-152": (152, 49),
}
"""The number of layers, and millions of parameters."""

LONG_RUN: Mapping[str, float] = {BVLC: 79, TRL: 62}
"""Minutes of AlexNet to 50% with four GPUs: 21,000 iterations, a test per 1,000 (section 5.2.5)."""

RUN, TESTS, TEST, TEST_BATCH, TEST_SECONDS = 21_000, 21, 1000, 50, 14.7
"""The long run's iterations and tests; each test's iterations, their batch size (50,000 images in all)
and the test's seconds."""

SEARCHES: Mapping[tuple[int, int, int], int] = {(10, 5, 9): 150, (10, 10, 20): 210}
"""Iterations of Algorithm 1 by step, range and best size: "stopped at iteration 150", and at most 21
intervals of ten (section 5.3)."""

FIGURE_5_AXIS = (3.5, 4.1)
"""Seconds for ten iterations of ResNet-152, between which Figure 5's curves lie."""
