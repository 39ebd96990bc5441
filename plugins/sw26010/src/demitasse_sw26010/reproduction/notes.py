"""What the tables rest on, what was fitted, and where the paper contradicts itself."""

from __future__ import annotations

from collections.abc import Mapping

from demitasse_sw26010.reproduction.neighbours import (
    NODES,
    RATES,
    SHARE,
    SPEEDUPS,
    asked,
    exchange,
    levels,
)

ABOUT_COUNTS = (
    "predicted: simulated, from the counts of this plugin's kernels on a core group of "
    "hwdesc/sw26010-node.toml: DMA by blocks, register messages, cycles of the two pipelines. Fitted "
    "on Table II's printed cells, one value for all of them: a DMA block's overhead (192 bytes), the "
    "product's tile (256 x 64 x 256), its overhead (40 cycles), two columns of 128 images in implicit "
    "GEMM without overlap, and 32 MiB of columns for the weights' gradient; assumed without a fit: a "
    "DMA's latency (400 cycles)",
    "Table II: one core group, batch 128; no prediction where the paper says that a strategy is not "
    "applicable or does not handle so few channels. Beside printed cells stands what is simulated; "
    "withheld 5_2 and 5_3, of 5_1's shape, are as 5_1 is printed; explicit GEMM of 2_2 to 4_3 is "
    "simulated times what the block's first layer misses, which has half their inputs, implicit GEMM of "
    "4_2 and 4_3 times what 5_1 misses, which has their channels. Simulated alone, explicit GEMM of 3_2 "
    "and 4_2 came out up to 19% slower a flop than 3_1 and 4_1 are printed. Nothing printed checks this "
    "layer by layer; what is left of VGG-19's step over VGG-16's (49% of the GPU) agrees with it",
    "Table III: one node, a quarter of the batch on each of four core groups, every operation of a step "
    "with the cheaper strategy of each convolution, the gradients summed on core group 0, one update; "
    "reading data is hidden; batch normalisation and scale as Caffe's layers compose them, with "
    "products that spread statistics (k = 1), as the authors' published source does until December "
    "2018, not by this plugin's fused kernel. (That source also normalises after each of AlexNet's "
    "convolutions, where the paper says that it replaces LRN, which is after two: two here)",
)
"""The notes before those about neighbours."""

ABOUT_THE_PAPER = (
    "section VI.A says that im2col and col2im take most of the time of the first two convolutions. Here "
    "products of few channels do. Of VGG-16's 1_1 Table II leaves im2col at most 1.10 of 4.19 s, as the "
    "weights' gradient begins with it too",
    "Table III, SW/NV and SW/CPU: over the images a second that it prints for those. It prints 5.13 for "
    "VGG-16 over the CPU, where its own images a second give 5.86; 5.13 is what VGG-19's 49% of the GPU "
    "gives: 0.49 x 11.2 / 1.07",
    "section VI.B has 45% and 49% of the GPU for AlexNet and VGG-16, where Table III has 119% and 45%: "
    "taken for VGG-16 and VGG-19",
    "no untouched checks: that images are taken one by one where there is no im2col (1 x 1), and that "
    "Caffe's normalisation copies once more, are as in Caffe, but were sought after ResNet-50's share "
    "of communication came out at 13.1% and GoogleNet at 53% of the GPU; Tables II and III's printed "
    "convolutions do not change by the first",
    "sizes: the MB of sections V.B and VI.C are 2^20 bytes; ResNet-50's 97.7 have the means and "
    "variances of its normalisations, so these are exchanged too. Section V.A's 102 MB and 1.7 KB are "
    "millions and thousands of numbers, of 4 bytes each",
)
"""The notes after those about neighbours."""


def notes(steps: Mapping[str, float]) -> list[str]:
    """Return the notes. ``steps`` are the simulated seconds of each net's step on a node, with the batch
    of Table III."""
    return [*ABOUT_COUNTS, *_neighbours(steps), *ABOUT_THE_PAPER]


def _neighbours(steps: Mapping[str, float]) -> list[str]:
    """Return the notes about how withheld nets follow from printed ones, and how good the fit is: each
    of its two cells predicted from the other, and both from the counts alone."""
    level, (by_speedup, by_share) = levels(steps), asked()
    batch, rate = RATES["AlexNet"]
    alone, sent = steps["ResNet-50"], exchange("ResNet-50")

    def speedup(step: float) -> float:
        return NODES * step / (step + sent)

    def share(step: float) -> float:
        return 100 * sent / (step + sent)

    return [
        "Table III, withheld nets: simulated, times what is printed over what is simulated of the "
        f"nearest printed net: for VGG-19 what VGG-16's counts miss ({level['VGG-19'] - 1:+.1%} of a "
        "step); 49% of the GPU checks it",
        "ResNet-50 and GoogleNet: section VI.B gives one reason for both, channels fewer than VGG's, so "
        "both should reach less of the GPU than VGG does. By the counts alone GoogleNet does not (49%), "
        f"and ResNet-50's node takes {alone:.2f} s. Its printed speedup asks for {by_speedup:.2f} s, "
        f"and its printed share of communication for {by_share:.2f} s, if a byte of gradients takes as "
        f"long to exchange as AlexNet's ({exchange('AlexNet'):.2f} s in all, by its printed speedup and "
        f"a step of {batch / rate:.2f} s in Table III). So both nets' steps have a residual, "
        f"{level['ResNet-50']:.2f} times, fitted on these two cells; nothing printed says what it is "
        "made of",
        f"ResNet-50's two cells, one by the other: {speedup(by_share):.1f} for {SPEEDUPS['ResNet-50']}, "
        f"{share(by_speedup):.2f}% for {100 * SHARE:g}%; by the counts alone {speedup(alone):.1f} and "
        f"{share(alone):.2f}%",
        "figures 10 and 11: a node's own step is simulated with so many images, times what the counts "
        f"miss of the same net: AlexNet's {level['AlexNet']:.3f} (by {rate:g} img/sec with {batch}), "
        "and the residual of ResNet-50",
    ]
