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
    "predicted: simulated from the counts of this plugin's kernels on one core group of "
    "hwdesc/sw26010-node.toml. The counts cover DMA by blocks, register messages, and the cycles of "
    "the two pipelines",
    "constants: fitted on Table II's printed cells, with one value for all of them: the overhead of a "
    "DMA block (192 bytes), the tile of the matrix product (256 x 64 x 256) and its overhead (40 "
    "cycles), the block of implicit GEMM (two columns of 128 images, without overlap), and the size "
    "of the im2col columns for the weights' gradient (32 MiB). The latency of a DMA (400 cycles) is "
    "assumed, not fitted",
    "Table II: one core group, batch 128. A cell has no prediction where the paper says that a "
    "strategy is not applicable or cannot handle so few channels. Printed cells are compared with the "
    "plain simulation",
    "Table II, withheld cells: 5_2 and 5_3 have 5_1's shape, so 5_1's printed figures are used. The "
    "others are simulated. Two groups are then multiplied by a factor: the printed over the simulated "
    "seconds of a similar printed layer. For explicit GEMM of 2_2 to 4_3, this is the block's first "
    "layer, which has half as many inputs. For implicit GEMM of 4_2 and 4_3, it is 5_1, which has the "
    "same channels. Without the factor, explicit GEMM of 3_2 and 4_2 takes up to 19% longer per flop "
    "than is printed for 3_1 and 4_1. No printed figure checks these cells layer by layer. The time "
    "by which VGG-19's step exceeds VGG-16's, from the printed 49% of the GPU, agrees with them",
    "Table III: one node, with a quarter of the batch on each of four core groups. A step consists of "
    "all operations, the sum of the gradients on core group 0, and one update. Each convolution uses "
    "the cheaper strategy. Reading data is hidden",
    "Table III, batch normalisation: normalisation and scale are composed as in Caffe's layers, and "
    "products with k = 1 spread the statistics. The authors' published source does so until December "
    "2018. This plugin's fused kernel is not used. That source also normalises after each of "
    "AlexNet's convolutions. The paper says that normalisation replaces LRN, which follows two "
    "convolutions, so AlexNet has two here",
)
"""The notes before those about neighbours."""

ABOUT_THE_PAPER = (
    "section VI.A says that im2col and col2im take most of the time of the first two convolutions. In "
    "this model, products with few channels do. For VGG-16's 1_1, Table II leaves im2col at most 1.10 "
    "of the forward pass's 4.19 s, because the weights' gradient also begins with im2col and takes "
    "1.10 s in all",
    "Table III, SW/NV and SW/CPU: predicted images per second are divided by those that the table "
    "prints for the GPU and the CPU. For VGG-16 over the CPU it prints 5.13, but its own images per "
    "second give 5.86. 5.13 follows from VGG-19's 49% of the GPU: 0.49 x 11.2 / 1.07",
    "section VI.B gives 45% and 49% of the GPU for AlexNet and VGG-16, but Table III has 119% and 45% "
    "for them. The two figures are taken to be for VGG-16 and VGG-19",
    "limits of the checks: no check is untouched by the results. Two details were looked for only "
    "after ResNet-50's share of communication came out at 13.1% and GoogleNet at 53% of the GPU. Both "
    "are as in Caffe: images are taken one by one where there is no im2col (1 x 1), and normalisation "
    "makes one more copy. The first does not change the printed convolutions of Tables II and III",
    "sizes: an MB in sections V.B and VI.C is 2^20 bytes. ResNet-50's 97.7 MB include the means and "
    "variances of its normalisations, so these are exchanged too. The 102 MB and 1.7 KB of section "
    "V.A are millions and thousands of numbers of 4 bytes each",
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
        "Table III, withheld nets: simulated seconds are multiplied by a factor: the printed over the "
        "simulated seconds of the most similar printed net. For VGG-19 this is VGG-16, whose factor "
        f"changes a step by {level['VGG-19'] - 1:+.1%}. The printed 49% of the GPU checks VGG-19",
        "ResNet-50 and GoogleNet: section VI.B gives one reason for both: they have fewer channels "
        "than VGG. So both should reach a smaller share of the GPU's speed than VGG. By the counts "
        "alone, GoogleNet does not: it reaches 49%, above VGG-16's 45%. ResNet-50's step on a node "
        f"takes {alone:.2f} s by the counts",
        f"ResNet-50's step: its printed speedup implies {by_speedup:.2f} s, and its printed share of "
        f"communication {by_share:.2f} s, if exchanging a byte of gradients takes as long as for "
        f"AlexNet. AlexNet's exchange takes {exchange('AlexNet'):.2f} s in all, by its printed speedup "
        f"and its step of {batch / rate:.2f} s in Table III",
        "residual: the simulated steps of both ResNet-50 and GoogleNet are therefore multiplied by "
        f"{level['ResNet-50']:.2f}. This residual is fitted on ResNet-50's speedup and share. Nothing "
        "printed says what it consists of",
        f"ResNet-50's two cells, each predicted from the other: speedup {speedup(by_share):.1f} "
        f"(printed {SPEEDUPS['ResNet-50']}), share {share(by_speedup):.2f}% (printed "
        f"{100 * SHARE:g}%). The counts alone give {speedup(alone):.1f} and {share(alone):.2f}%",
        "figures 10 and 11: a node's own step is simulated with the number of images in the row, and "
        f"multiplied by a factor of the same net. AlexNet's factor is {level['AlexNet']:.3f}, from the "
        f"printed {rate:g} img/sec with {batch} images. ResNet-50's is the residual",
    ]
