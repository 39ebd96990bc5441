"""Nets that are trained briefly to measure the rates of layers: the kinds of convolutions in well-known
nets, and the layers between them. ``times`` multiplies a batch that keeps a few cores busy."""

from __future__ import annotations

from dataclasses import dataclass, field

from demitasse import RatedOperation

SOLVER = 'net: "net.prototxt"\nbase_lr: 0.0001\nlr_policy: "fixed"\nmax_iter: 1\n'

BATCH = 8
SIDE = 56
CHANNELS = 256
NARROW = (64, 128, 256, 512)
"""Channels inside each stage of bottlenecks; the ends of each have four times as many."""

IMAGES = 224
"""The side of nets' usual input images."""

ROWS = 32
WIDE = 4096
"""Batch size and outputs of inner products as large as those of AlexNet and VGG-16."""

_CONVOLUTION = """
layer {{ name: "{top}" type: "Convolution" bottom: "{bottom}" top: "{top}" convolution_param {{
        num_output: {outputs} kernel_size: {side} pad: {pad} stride: {stride} group: {group}
        weight_filler {{ type: "msra" }} }} }}
"""
_PRODUCT = """
layer {{ name: "{top}" type: "InnerProduct" bottom: "{bottom}" top: "{top}" inner_product_param {{
        num_output: {outputs} weight_filler {{ type: "xavier" }} }} }}
"""
_PLAIN = """
layer {{ name: "{top}" type: "{type}" bottom: "{bottom}" top: "{top}" {about} }}
"""
_LOSS = """
layer {{ name: "loss" type: "SoftmaxWithLoss" bottom: "{bottom}" bottom: "label" top: "loss" }}
"""


@dataclass
class Net:
    """A net as the text of its file. It takes ``batch`` samples of ``shape``. ``convolutions`` says, by
    layer name, for which rate each convolution counts; for other operations, their names do."""

    name: str
    batch: int
    shape: tuple[int, ...]
    text: str = ""
    convolutions: dict[str, RatedOperation] = field(default_factory=dict)
    last: str = "data"

    def __post_init__(self) -> None:
        self.text = (
            f'name: "{self.name}"\nlayer {{ name: "data" type: "Data" top: "data" top: "label"\n'
            f'        data_param {{ source: "arrays" batch_size: {self.batch} }} }}\n'
        )

    def convolve(
        self, outputs: int, side: int, *, stride: int = 1, group: int = 1, of: int | None = None
    ) -> None:
        """Add a convolution and a ReLU. The convolution's rate is for filters of its window that read at
        most ``of`` channels."""
        top = f"convolution{len(self.convolutions) + 1}"
        about = {"top": top, "bottom": self.last, "outputs": outputs, "group": group}
        self.text += _CONVOLUTION.format(**about, side=side, pad=side // 2, stride=stride)
        self.convolutions[top] = RatedOperation("convolution", (side, side), of)
        self.last = top

    def add(self, kind: str, top: str, about: str = "", *, in_place: bool = False) -> None:
        """Add a layer of this type."""
        text = _PLAIN.format(type=kind, top=top, bottom=self.last, about=about)
        self.text += text.replace(f'top: "{top}"', f'top: "{self.last}"') if in_place else text
        self.last = self.last if in_place else top

    def rectify(self) -> None:
        """Add a ReLU in place."""
        self.add("ReLU", f"{self.last}_relu", in_place=True)

    def normalise(self) -> None:
        """Add batch normalisation, a scale and a ReLU, in place."""
        name = self.last
        self.add("BatchNorm", f"{name}_normalised", in_place=True)
        self.add("Scale", f"{name}_scaled", "scale_param { bias_term: true }", in_place=True)
        self.rectify()

    def multiply(self, outputs: int) -> None:
        """Add an inner product."""
        top = f"product{self.text.count('InnerProduct') + 1}"
        self.text += _PRODUCT.format(top=top, bottom=self.last, outputs=outputs)
        self.last = top

    def end(self) -> Net:
        """Add ten classes and a loss; return the net."""
        self.multiply(10)
        self.text += _LOSS.format(bottom=self.last)
        return self


def bottlenecks(times: int = 1) -> Net:
    """Return the most common convolutions of ResNet-50, at four image sizes: 1 x 1 ones that reduce
    channels to a quarter, 3 x 3 ones, and 1 x 1 ones that expand them again."""
    net = Net("bottlenecks", times * BATCH, (CHANNELS, SIDE, SIDE))
    for stage, narrow in enumerate(NARROW):
        net.convolve(narrow, 1, stride=2 if stage else 1)
        net.rectify()
        net.convolve(narrow, 3)
        net.rectify()
        net.convolve(4 * narrow, 1)
        net.rectify()
    net.add("Pooling", "pooled", "pooling_param { pool: AVE global_pooling: true }")
    return net.end()


def varieties(times: int = 1) -> Net:
    """Return what other nets contain: filters that read images, larger filters, filters of one channel
    and of a few, and normalisation, pooling and dropout."""
    net = Net("varieties", times * BATCH, (3, IMAGES, IMAGES))
    few, some, many = CHANNELS // 4, CHANNELS // 2, CHANNELS
    net.convolve(few, 7, stride=2, of=4)
    net.rectify()
    net.add("LRN", "responses", "lrn_param { local_size: 5 }")
    net.add("Pooling", "halved", "pooling_param { pool: MAX kernel_size: 3 stride: 2 }")
    net.convolve(some, 5)
    net.normalise()
    net.convolve(some, 3, group=some, of=1)
    net.normalise()
    net.convolve(many, 1)
    net.normalise()
    net.add("Pooling", "quartered", "pooling_param { pool: MAX kernel_size: 2 stride: 2 }")
    net.convolve(many, 3, group=many // 8, of=8)
    net.normalise()
    net.convolve(many, 3, group=many, of=1)
    net.normalise()
    net.add("Dropout", "dropped", "dropout_param { dropout_ratio: 0.5 }")
    net.add("Pooling", "averaged", "pooling_param { pool: AVE kernel_size: 3 stride: 2 }")
    return net.end()


def inner_products(times: int = 1) -> Net:
    """Return the inner products that follow the convolutions of AlexNet and VGG-16."""
    net = Net("inner_products", times * ROWS, (WIDE,))
    for _ in range(2):
        net.multiply(WIDE)
        net.rectify()
    return net.end()
