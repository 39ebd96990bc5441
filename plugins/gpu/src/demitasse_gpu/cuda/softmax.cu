// Softmax, its loss, and accuracy. Arrays are outer x classes x inner in memory; a block makes one prediction: a row of
// classes that are `inner` apart.
#include "labels.cuh"
#include "reductions.cuh"

extern "C" __global__ void softmax(const stored *x, stored *y, int classes, int inner) {
    const Offset start = row_start(blockIdx.x, classes, inner);
    real most = (real)widened(x[start]), total = 0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x)
        most = Largest::of((real)widened(x[start + (Offset)c * inner]), most);
    most = block_largest(most);
    for (int c = threadIdx.x; c < classes; c += blockDim.x)
        total += exponential((real)widened(x[start + (Offset)c * inner]) - most);
    total = block_sum(total);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        const Offset i = start + (Offset)c * inner;
        y[i] = Narrow<stored>::of(exponential((real)widened(x[i]) - most) / total);
    }
}

extern "C" __global__ void softmax_backward(
    const stored *dy, const stored *y, stored *dx, int classes, int inner) {
    const Offset start = row_start(blockIdx.x, classes, inner);
    real total = 0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        const Offset i = start + (Offset)c * inner;
        total += (real)widened(dy[i]) * (real)widened(y[i]);
    }
    total = block_sum(total);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        const Offset i = start + (Offset)c * inner;
        dx[i] = Narrow<stored>::of((real)widened(y[i]) * ((real)widened(dy[i]) - total));
    }
}

// The loss of each prediction: 0 if it is ignored, NaN if its label is not a class; and the probabilities, if wanted.
extern "C" __global__ void row_losses(
    const real *x, const label_type *label, real *probability, real *losses, int *counts, int classes,
    int inner, int ignores, double ignored) {
    const Offset start = row_start(blockIdx.x, classes, inner);
    real most = x[start], total = 0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) most = Largest::of(x[start + (Offset)c * inner], most);
    most = block_largest(most);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) total += exponential(x[start + (Offset)c * inner] - most);
    total = block_sum(total);
    // Read before probabilities are written, which may overwrite x.
    const int own = class_of(label[blockIdx.x], classes, ignores, ignored);
    const real at_label = own < 0 ? 0 : x[start + (Offset)own * inner];
    if (probability) {
        __syncthreads();
        for (int c = threadIdx.x; c < classes; c += blockDim.x) {
            const Offset i = start + (Offset)c * inner;
            probability[i] = exponential(x[i] - most) / total;
        }
    }
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = own == -2 ? not_a_number() : own == -1 ? 0 : logarithm(total) + most - at_label;
        counts[blockIdx.x] = own != -1;
    }
}

// The number of labels that count, by one block.
extern "C" __global__ void count_labels(
    const label_type *label, int *count, int rows, int classes, int ignores, double ignored) {
    int found = 0;
    for (int row = threadIdx.x; row < rows; row += blockDim.x)
        found += class_of(label[row], classes, ignores, ignored) != -1;
    found = block_sum(found);
    if (threadIdx.x == 0) *count = found;
}

// The sum of the rows' losses over `normaliser`, or if that is 0, over the number that count; by one block.
extern "C" __global__ void total_loss(
    const real *losses, const int *counts, real *loss, int rows, double normaliser) {
    double total = 0;
    int found = 0;
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
        total += (double)losses[row];
        found += counts[row];
    }
    total = block_sum(total);
    found = block_sum(found);
    if (threadIdx.x == 0) *loss = (real)(total / (normaliser > 0 ? normaliser : largest_of(found, 1)));
}

// dx = dloss * (probability - 1 at the label) over the normaliser, or over the count if that is 0.
extern "C" __global__ void softmax_loss_backward(
    const real *dloss, const real *probability, const label_type *label, const int *count, real *dx,
    int classes, int inner, int ignores, double ignored, double normaliser, Offset size) {
    const real share = *dloss / (real)(normaliser > 0 ? normaliser : (double)largest_of(*count, 1));
    for (Offset i = (Offset)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += (Offset)gridDim.x * blockDim.x) {
        const unsigned place = (unsigned)i, c = place / inner % classes;
        const int own =
            class_of(label[place / inner / classes * inner + place % inner], classes, ignores, ignored);
        dx[i] = own == -1 ? 0 : share * (probability[i] - (own == (int)c));
    }
}

// The class of each prediction's label, -1 if it is ignored or not a class, and whether it is among the best.
extern "C" __global__ void score_rows(
    const stored *x, const label_type *label, int *own_class, int *hits, int classes, int inner, int best,
    int ignores, double ignored) {
    const Offset start = row_start(blockIdx.x, classes, inner);
    const int own = class_of(label[blockIdx.x], classes, ignores, ignored);
    int better = 0;
    if (own >= 0) {
        const real mine = (real)widened(x[start + (Offset)own * inner]);
        for (int c = threadIdx.x; c < classes; c += blockDim.x) {
            const real value = (real)widened(x[start + (Offset)c * inner]);
            // NaN is not <= anything, so it counts as better; of equals the later class comes first.
            better += !(value <= mine) || (c > own && value == mine);
        }
    }
    better = block_sum(better);
    if (threadIdx.x == 0) {
        own_class[blockIdx.x] = own < 0 ? -1 : own;
        hits[blockIdx.x] = own >= 0 && better < best;
    }
}

// The share of hits: per class if `target` has room for each (one thread per class), otherwise over all (one block).
extern "C" __global__ void accuracy(
    const int *own_class, const int *hits, real *target, int rows, int classes, int by_class) {
    if (by_class) {
        const int mine = blockIdx.x * blockDim.x + threadIdx.x;
        if (mine >= classes) return;
        int found = 0, right = 0;
        for (int row = 0; row < rows; ++row) {
            found += own_class[row] == mine;
            right += own_class[row] == mine && hits[row];
        }
        target[mine] = (real)right / (real)largest_of(found, 1);
        return;
    }
    int found = 0, right = 0;
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
        found += own_class[row] >= 0;
        right += hits[row];
    }
    found = block_sum(found);
    right = block_sum(right);
    if (threadIdx.x == 0) *target = (real)right / (real)largest_of(found, 1);
}
