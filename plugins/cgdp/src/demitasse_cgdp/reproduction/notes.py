"""Notes on the predictions of the paper's tables."""

from __future__ import annotations

from demitasse_cgdp.reproduction import memory
from demitasse_cgdp.reproduction.machine import LAUNCH, calibrated
from demitasse_cgdp.reproduction.nets import NETS
from demitasse_cgdp.reproduction.printed import FIGURE_5_AXIS


def notes() -> list[str]:
    """Return what was calibrated, what checks it, and what is off."""
    machine = calibrated()
    rates, size = machine.rates, NETS["AlexNet"]().gradients / 1e6
    return [
        "predicted: simulated. A layer takes time in proportion to the larger of its operations over "
        "10.6 TFLOP/s and its bytes over 732 GB/s (hwdesc/power8-4xp100.toml), as much as makes the "
        "printed iteration of one GPU, and each kernel 5 us besides (assumed); for ResNet-152, where no "
        "iteration is printed, in GoogLeNet's proportion",
        f"calibrated on Table 4: AlexNet's {size:.1f} MB over the sums of its rows, "
        f"{rates.d2h / 1e9:.1f} GB/s to the host, {rates.h2d / 1e9:.1f} GB/s back, "
        f"{rates.accumulate / 1e9:.1f} GB/s of four GPUs' gradients added; with two half as much is "
        "added",
        f"calibrated on Tables 2 and 3: copies between GPUs of one processor "
        f"{1 / machine.near / 1e9:.1f} GB/s (BVLC/Caffe, AlexNet with two GPUs) and of two "
        f"{1 / machine.far / 1e9:.1f} GB/s (broadcast, less the copy inside a processor)",
        f"calibrated on Table 2: waiting for the slowest, {machine.jitter * 1e6:.0f} us a weighted "
        f"layer times the expected largest of as many standard normal numbers as there are GPUs "
        f"(BVLC/Caffe, GoogLeNet with four, which exchanges a fifth of AlexNet's bytes and loses half "
        "as much time)",
        f"calibrated on Table 2: backward beside copies is longer by {rates.interference:.1%} of their "
        f"time (the bytes alone are 5% of the GPU's memory bandwidth), beside additions by "
        f"{rates.adding:.1%}, as callbacks and threads that add hold up those that drive GPUs "
        f"(TRL/Caffe, AlexNet with two and with four GPUs, which add twice as much)",
        f"calibrated on section 5.3: a launch takes {LAUNCH * 1e6:.0f} us with several threads at one "
        f"driver, the least five of microseconds with which OrigCGDP is slower than TypDP. After a "
        f"synchronisation nothing is in the queue; ResNet-152's kernels are shorter than that, so "
        f"each one costs it more than others",
        "checked: all other printed cells of Tables 2, 3 and 5, the speedups with four GPUs, the "
        "largest batch of BVLC/Caffe. The forms of what is calibrated were chosen with all printed "
        "cells in sight, the printed 1.21 of VGGNet-16 among them: its speedup is no untouched check",
        "the tree of BVLC/Caffe: the GPUs of a processor in pairs, then the processors. GPU 0 has "
        "room for the gradients of each from whom it collects, two of four: that is Table 5's "
        "difference, nothing fitted (an MB is 10^6 bytes). GoogLeNet's 7 million parameters are 13.4 "
        "with its further losses, which are exchanged too, as Table 5 confirms",
        f"section 5.2.4: from Table 5's batch on, an image takes its blobs, their gradients, and its "
        f"part of three batches that are held ready; {memory.available() / 1e9:.1f} of the 16 GB are "
        f"left for a training, calibrated on the 103 images of TRL/Caffe",
        "with two GPUs the tree is one copy inside a processor each way, the host adds half as much, "
        "and there are fewer to wait for: AlexNet's BVLC/Caffe loses 17 ms, not 45. GoogLeNet gains "
        "nothing from CGDP there: most of what it loses is waiting, which both schemes have",
        "Table 4's layers follow from the sums of its rows only: copies of layers 8 and 6 are printed "
        "far from them, as each waits for others",
        "section 5.2.5: 21,000 iterations and 21 tests, by the iterations predicted here; that a test's "
        "images are made from compressed ones is not counted",
        "a chunk's layers are Caffe's with parameters, 466 of ResNet-152: each convolution, its "
        "normalisation and its scale. That 3, 6 and 9 were found, each a multiple of three, and that "
        "they are alike, says so; and GoogLeNet, whose 64 lose little, bears no longer launch",
        f"Figure 5: its axis has ten iterations between {FIGURE_5_AXIS[0]:g} and {FIGURE_5_AXIS[1]:g} "
        "s, in which the three ways of four GPUs are; a single one is predicted 9% below it, too quick "
        "(GoogLeNet's proportion is less than its own). Table 1 prints 49 million parameters for it, "
        "where its authors' net has 60",
        "Figure 2: naive chunks of 1 are slower than TypDP, and larger ones quicker up to where few "
        "are left to synchronise. 3, 6, 9 and 20 differ by 1%, as the paper finds them alike. So what "
        "Algorithm 1 settles on is chance there; without noise it goes on to 30, 0.4% better than 9. "
        "That large ones are not good is seen here beyond 100 only",
    ]
