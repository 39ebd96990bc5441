"""Real nets on real data: weights that others trained score what they are known to, and training
learns. The files are not the project's; DEMITASSE_SHARED names their folder."""

from collections.abc import Callable
from pathlib import Path

import pytest
from real_files import DATA

import demitasse

pytestmark = pytest.mark.all_cores

ROOT = Path(__file__).parents[1]
MNIST, CIFAR, MODELS = (
    DATA / "mnist",
    DATA / "cifar10",
    DATA / "caffemodel" / "everpeace+caffe" / "examples",
)

needs_data = pytest.mark.skipif(
    not (MNIST.is_dir() and CIFAR.is_dir() and MODELS.is_dir()),
    reason=f"no MNIST, CIFAR-10 and caffemodels under {DATA}",
)

SCORES = {
    "LeNet": ("mnist/lenet_train_test", "mnist/lenet_iter_10000", "t10k-images-idx3-ubyte.gz", 0.9905),
    "CIFAR-10 quick": (
        "cifar10/cifar10_quick_train_test",
        "cifar10/cifar10_quick_iter_5000",
        "",
        0.7491,
    ),
    "CIFAR-10 full": ("cifar10/cifar10_full_train_test", "cifar10/cifar10_full_iter_70000", "", 0.8211),
}


@needs_data
@pytest.mark.parametrize("name", SCORES)
def test_weights_that_others_trained_score_what_another_reader_gives(
    name: str, unpacked_cifar: Callable[[str], Path]
) -> None:
    """The accuracies are OpenCV 4's on the whole test sets."""
    net, weights, file, accuracy = SCORES[name]
    layer, source = ("mnist", MNIST / file) if file else ("cifar", unpacked_cifar("test_batch"))
    overrides = {f"layer.{layer}.data_param.source": str(source)}
    if not file:
        mean = DATA / "mean" / "cifar10_mean.binaryproto"
        overrides[f"layer.{layer}.transform_param.mean_file"] = str(mean)
    with demitasse.compose() as runtime:
        found = runtime.net(
            MODELS / f"{net}.prototxt", weights=MODELS / f"{weights}.caffemodel", overrides=overrides
        ).test(100)
    assert found["accuracy"] == pytest.approx(accuracy, abs=0.0005)


def train(solver: str, iterations: int, **sources: Path) -> float:
    overrides = {f"layer.{layer}.data_param.source": str(path) for layer, path in sources.items()}
    with demitasse.compose() as runtime:
        trainer = runtime.trainer(ROOT / "examples" / solver, overrides=overrides)
        trainer.step(iterations)
        return float(trainer.test()["accuracy"])


@needs_data
def test_lenet_learns_mnist_in_300_iterations() -> None:
    images = {
        "mnist": MNIST / "train-images-idx3-ubyte.gz",
        "mnist_test": MNIST / "t10k-images-idx3-ubyte.gz",
    }
    assert train("mnist/lenet_solver.prototxt", 300, **images) > 0.95


@needs_data
@pytest.mark.slow
def test_lenet_reaches_99_percent_on_mnist() -> None:
    images = {
        "mnist": MNIST / "train-images-idx3-ubyte.gz",
        "mnist_test": MNIST / "t10k-images-idx3-ubyte.gz",
    }
    assert train("mnist/lenet_solver.prototxt", 10_000, **images) >= 0.99
