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
        "all predictions are simulated. An operation needs the larger of its FLOPs over 10.6 TFLOP/s "
        "and its bytes over 732 GB/s (hwdesc/power8-4xp100.toml). These times are scaled so that the "
        "iteration on one GPU takes as long as printed. Each kernel takes another 5 us (assumed). For "
        "ResNet-152 no iteration is printed, so it has GoogLeNet's scale factor",
        f"calibrated on Table 4: AlexNet's {size:.1f} MB, divided by the sum of each row, give "
        f"{rates.d2h / 1e9:.1f} GB/s to the host, {rates.h2d / 1e9:.1f} GB/s back, and "
        f"{rates.accumulate / 1e9:.1f} GB/s for adding the gradients of four GPUs. With two GPUs the "
        "host adds half as much",
        "calibrated on Tables 2 and 3: copies between GPUs of one processor reach "
        f"{1 / machine.near / 1e9:.1f} GB/s (BVLC/Caffe, AlexNet with two GPUs). Copies between "
        f"processors reach {1 / machine.far / 1e9:.1f} GB/s (Table 3's broadcast, less the copy inside "
        "a processor)",
        f"calibrated on Table 2: all GPUs wait for the slowest. The wait is {machine.jitter * 1e6:.0f} "
        "us per weighted layer, times the expected maximum of as many standard normal numbers as there "
        "are GPUs. The cell is BVLC/Caffe, GoogLeNet with four GPUs, which exchanges a fifth of "
        "AlexNet's bytes but loses half as much time",
        "calibrated on Table 2: copies to and from the host prolong the backward pass by "
        f"{rates.interference:.1%} of the copies' time. Copies in both directions at once use 5% of "
        f"the GPU's memory bandwidth. Additions on the host prolong it by {rates.adding:.1%} of the "
        "additions' time, because callbacks and adding threads delay the threads that drive the GPUs. "
        "The cells are TRL/Caffe, AlexNet with two and with four GPUs; four add twice as much",
        f"calibrated on section 5.3: a kernel launch takes {LAUNCH * 1e6:.0f} us while several threads "
        "use one driver. This is the smallest multiple of 5 us with which OrigCGDP is slower than "
        "TypDP. After a synchronisation the queue is empty. ResNet-152's kernels are shorter than a "
        "launch, so each synchronisation costs it more than it costs the other nets",
        "checks: all other printed cells of Tables 2, 3 and 5, the speedups with four GPUs, and the "
        "largest batch of BVLC/Caffe",
        "the form of each calibrated term was chosen with all printed cells in view, including the "
        "1.21 of VGGNet-16. That net's speedup is therefore not an independent check",
        "BVLC/Caffe's tree joins the two GPUs of each processor first, then the processors. GPU 0 "
        "holds buffers for the gradients of the GPUs that it collects from, two of the four. These "
        "buffers are Table 5's difference; nothing is fitted (1 MB is 10^6 bytes)",
        "GoogLeNet has 7 million parameters, and 13.4 million with its auxiliary losses. Those are "
        "exchanged too, as Table 5 confirms",
        "section 5.2.4: beyond Table 5's batch, each image needs memory for its blobs, their "
        f"gradients, and its part of three batches that are held ready. {memory.available() / 1e9:.1f} "
        "of the 16 GB are available for training, calibrated on TRL/Caffe's 103 images",
        "with two GPUs, the tree has one copy each way, inside a processor. The host adds half as "
        "much, and each GPU waits for fewer others. AlexNet under BVLC/Caffe then loses 17 ms instead "
        "of 45 ms. GoogLeNet gains nothing from CGDP there, because most of its loss is waiting, which "
        "both schemes have",
        "Table 4's predictions for single layers follow only from the sums of its rows. The printed "
        "copies of layers 8, 7 and 6 are far from them, probably because copies wait for each other",
        "section 5.2.5: training takes 21,000 iterations, each as long as predicted here, and 21 "
        "tests. Decoding the test's compressed images is not counted",
        "a chunk's layers are Caffe's layers with parameters: 466 in ResNet-152, where each "
        "convolution, its normalisation and its scale count separately. The chunk sizes 3, 6 and 9 "
        "that the paper found support this: they are multiples of three and perform alike. GoogLeNet's "
        "64 layers lose little, which rules out a longer launch",
        f"Figure 5: its axis shows ten iterations between {FIGURE_5_AXIS[0]:g} and "
        f"{FIGURE_5_AXIS[1]:g} s. The three predictions for four GPUs lie in this range. The "
        "prediction for a single GPU is 9% below it, which is too fast: GoogLeNet's scale factor is "
        "smaller than ResNet-152's own",
        "Table 1 prints 49 million parameters for ResNet-152; its authors' net has 60 million",
        "Figure 2: chunks of size 1 are slower than TypDP. Larger chunks are faster, until few "
        "synchronisations are left. Sizes 3, 6, 9 and 20 differ by 1%, and the paper finds them alike. "
        "Which of them Algorithm 1 selects is therefore chance. Without noise it goes on to 30, which "
        "is 0.4% better than 9",
        "Figure 2: the paper says that large chunks are not good. The simulation shows this only "
        "beyond 100",
    ]
