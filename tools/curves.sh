#!/usr/bin/env bash
# Train the examples on real data and draw the curves in docs/curves. DATA is a folder with mnist/ (IDX
# files) and cifar10/ (binary files, packed or not); about three minutes on two cores.
#
#     tools/curves.sh DATA [digits|mnist|cifar10 ...]
set -eu
data=$(cd "${1:?usage: tools/curves.sh DATA [digits|mnist|cifar10 ...]}" && pwd)
shift
cd "$(dirname "$0")/.."
bin=.venv/bin
out=out/curves
mkdir -p "$out" docs/curves

digits() {
    $bin/demitasse train examples/digits/digits_solver.prototxt \
        --json "$out/digits.json" --set "snapshot_prefix=$out/digits"
    $bin/demitasse curve "$out/digits.json" -o docs/curves/digits.png \
        --title "A small LeNet on scikit-learn's digits"
}

mnist() {
    $bin/demitasse train examples/mnist/lenet_solver.prototxt \
        --set "layer.mnist.data_param.source=$data/mnist/train-images-idx3-ubyte.gz" \
        --set "layer.mnist_test.data_param.source=$data/mnist/t10k-images-idx3-ubyte.gz" \
        --json "$out/mnist.json" --set "snapshot_prefix=$out/lenet"
    $bin/demitasse curve "$out/mnist.json" -o docs/curves/mnist.png \
        --title "LeNet on MNIST, Caffe's hyperparameters"
}

cifar10() {
    local sources=(
        --set "layer.cifar.data_param.source=$data/cifar10/data_batch_*.bin*"
        --set "layer.cifar_test.data_param.source=$data/cifar10/test_batch.bin*"
        --set "snapshot_prefix=$out/cifar10_quick"
    )
    $bin/demitasse train examples/cifar10/cifar10_quick_solver.prototxt "${sources[@]}" \
        --json "$out/cifar10.json"
    $bin/demitasse train examples/cifar10/cifar10_quick_solver_lr1.prototxt "${sources[@]}" \
        --resume "$out/cifar10_quick_iter_4000.demitasse" --json "$out/cifar10_lr1.json"
    $bin/demitasse curve "$out/cifar10.json" "$out/cifar10_lr1.json" \
        -o docs/curves/cifar10_quick.png --title "CIFAR-10 quick, Caffe's hyperparameters"
}

for run in "${@:-digits mnist cifar10}"; do
    for name in $run; do
        "$name"
    done
done
