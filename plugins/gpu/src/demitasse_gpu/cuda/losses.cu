// Losses other than softmax's, and their gradients. Blocks write sums of terms to losses[block], and how many of those
// count to counts[block]; total_loss (softmax.cu) adds them up. Samples are rows.
#include "labels.cuh"
#include "reductions.cuh"

__device__ inline real least_probability() { return (real)1e-20; }

__device__ inline void leave(real sum, int count, real *losses, int *counts) {
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = sum;
        counts[blockIdx.x] = count;
    }
}

extern "C" __global__ void half_squared_distance(
    const real *a, const real *b, real *losses, int *counts, Offset count) {
    real sum = 0;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) sum += (a[i] - b[i]) * (a[i] - b[i]);
    leave(sum, 0, losses, counts);
}

extern "C" __global__ void half_squared_distance_backward(
    const real *dloss, const real *a, const real *b, real *da, real *db, int samples, Offset count) {
    const real share = *dloss / (real)samples;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const real slope = share * (a[i] - b[i]);
        if (da) da[i] = slope;
        if (db) db[i] = -slope;
    }
}

// How far an element is inside the hinge's margin, and its sign: -1 at the label.
__device__ inline real opening(real x, bool own, real &sign) {
    sign = own ? -1 : 1;
    const real open = 1 + sign * x;
    return open < 0 ? 0 : open;
}

extern "C" __global__ void hinge_loss(
    const real *x, const label_type *label, real *losses, int *counts, int classes, int squared, Offset count) {
    real sum = 0, sign;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const int own = class_of(label[i / classes], classes, 0, 0);
        const real open = opening(x[i], own == (int)(i % classes), sign);
        sum += own < 0 ? not_a_number() : squared ? open * open : open;
    }
    leave(sum, 0, losses, counts);
}

extern "C" __global__ void hinge_loss_backward(
    const real *dloss, const real *x, const label_type *label, real *dx, int classes, int squared,
    int samples, Offset count) {
    const real share = *dloss / (real)samples;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        real sign;
        const int own = class_of(label[i / classes], classes, 0, 0);
        const real open = opening(x[i], own == (int)(i % classes), sign);
        dx[i] = share * sign * (squared ? 2 * open : open > 0 ? 1 : open);
    }
}

// `count` counts samples.
extern "C" __global__ void negative_log_likelihood(
    const real *x, const label_type *label, real *losses, int *counts, int classes, Offset count) {
    real sum = 0;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const int own = class_of(label[i], classes, 0, 0);
        const real p = own < 0 ? not_a_number() : x[i * classes + own];
        sum -= logarithm(p < least_probability() ? least_probability() : p);
    }
    leave(sum, 0, losses, counts);
}

extern "C" __global__ void negative_log_likelihood_backward(
    const real *dloss, const real *x, const label_type *label, real *dx, int classes, int samples,
    Offset count) {
    const real share = *dloss / (real)samples;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const bool own = class_of(label[i / classes], classes, 0, 0) == (int)(i % classes);
        dx[i] = own ? -share / largest_of(x[i], least_probability()) : 0;
    }
}

// (-1)^k cos(margin t) - 2 k and its slope, from the cosine of t, with margin t between k pi and (k + 1) pi.
__device__ inline real of_angle(real cosine, int margin, real &slope) {
    const real square = cosine * cosine;
    real value = cosine;
    slope = 1;
    if (margin == 2) value = 2 * square - 1, slope = 4 * cosine;
    if (margin == 3) value = (4 * square - 3) * cosine, slope = 12 * square - 3;
    if (margin == 4) value = 8 * square * (square - 1) + 1, slope = (32 * square - 16) * cosine;
    int k = 0;
    for (int j = 1; j < margin; ++j) k += cosine < (real)cospi((double)j / margin);
    if (k % 2) value = -value, slope = -slope;
    return value - 2 * k;
}

// `count` counts elements of x; each row is a sample.
extern "C" __global__ void angular_margin(
    const real *x, const real *length, const label_type *label, const unsigned long long *iteration, real *y,
    real *factor, int margin, double base, double gamma, double power, double least, double first, int classes,
    Offset count) {
    const double falling = base * pow(1 + gamma * (first + (double)*iteration + 1), -power);
    const real now = (real)(falling < least ? least : falling);
    if (thread_of_grid() == 0) *factor = now;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const Offset row = i / classes;
        const int own = class_of(label[row], classes, 0, 0);
        real slope, value = x[i];
        if (own == (int)(i % classes)) {
            const real psi = of_angle(value / length[row], margin, slope);
            value = (now * value + length[row] * psi) / (1 + now);
        }
        y[i] = own < 0 ? not_a_number() : value;
    }
}

extern "C" __global__ void angular_margin_backward(
    const real *dy, const real *x, const real *length, const label_type *label, const real *factor, real *dx,
    real *dlength, int margin, int classes, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const Offset row = i / classes;
        real value = dy[i];
        if (class_of(label[row], classes, 0, 0) == (int)(i % classes)) {
            const real norm = length[row], cosine = x[i] / norm, own = value / (1 + *factor);
            real along;
            const real psi = of_angle(cosine, margin, along), away = (psi - along * cosine) / norm;
            const real size = root(along * along + away * away);
            value = own * (*factor + along / size);
            dlength[row] = own * norm * away / size;
        }
        dx[i] = value;
    }
}

__device__ inline bool is_ignored(real target, int ignores, double ignored) {
    return ignores && (double)(long long)target == ignored;
}

extern "C" __global__ void sigmoid_cross_entropy_loss(
    const real *x, const label_type *targets, real *losses, int *counts, int ignores, double ignored,
    Offset count) {
    real sum = 0;
    int found = 0;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const real target = (real)targets[i], a = x[i];
        if (is_ignored(target, ignores, ignored)) continue;
        sum += (a > 0 ? a : 0) - a * target + logarithm_of_one_and(exponential(a > 0 ? -a : a));
        ++found;
    }
    leave(sum, found, losses, counts);
}

// The number of targets that count, by one block.
extern "C" __global__ void count_targets(
    const label_type *targets, int *count, int ignores, double ignored, Offset size) {
    int found = 0;
    for (Offset i = threadIdx.x; i < size; i += blockDim.x) found += !is_ignored((real)targets[i], ignores, ignored);
    found = block_sum(found);
    if (threadIdx.x == 0) *count = found;
}

extern "C" __global__ void sigmoid_cross_entropy_loss_backward(
    const real *dloss, const real *x, const label_type *targets, const int *count, real *dx, int ignores,
    double ignored, double normaliser, Offset size) {
    const real share = *dloss / (real)(normaliser > 0 ? normaliser : (double)largest_of(*count, 1));
    for (Offset i = thread_of_grid(); i < size; i += threads_of_grid()) {
        const real target = (real)targets[i], small = exponential(x[i] > 0 ? -x[i] : x[i]);
        const real p = (x[i] >= 0 ? 1 : small) / (1 + small);
        dx[i] = is_ignored(target, ignores, ignored) ? 0 : share * (p - target);
    }
}

// One block per prediction, as in softmax.cu: minus the sum of the label's gains times log p.
extern "C" __global__ void infogain_loss(
    const real *x, const label_type *label, const real *gains, real *probability, real *losses, int *counts,
    int classes, int inner, int ignores, double ignored) {
    const Offset start = row_start(blockIdx.x, classes, inner);
    const int own = class_of(label[blockIdx.x], classes, ignores, ignored);
    real most = x[start], total = 0, sum = 0;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) most = Largest::of(x[start + (Offset)c * inner], most);
    most = block_largest(most);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) total += exponential(x[start + (Offset)c * inner] - most);
    total = block_sum(total);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        const real p = exponential(x[start + (Offset)c * inner] - most) / total;
        if (probability) probability[start + (Offset)c * inner] = p;
        if (own >= 0) sum -= gains[(Offset)own * classes + c] * logarithm(largest_of(p, least_probability()));
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = own == -2 ? not_a_number() : sum;
        counts[blockIdx.x] = own != -1;
    }
}

extern "C" __global__ void infogain_loss_backward(
    const real *dloss, const real *probability, const label_type *label, const real *gains, const int *count,
    real *dx, int classes, int inner, int ignores, double ignored, double normaliser) {
    const Offset start = row_start(blockIdx.x, classes, inner);
    const int own = class_of(label[blockIdx.x], classes, ignores, ignored);
    const real share = *dloss / (real)(normaliser > 0 ? normaliser : (double)largest_of(*count, 1));
    real sum = 0;
    for (int c = threadIdx.x; own >= 0 && c < classes; c += blockDim.x) sum += gains[(Offset)own * classes + c];
    sum = block_sum(sum);
    for (int c = threadIdx.x; c < classes; c += blockDim.x) {
        const Offset i = start + (Offset)c * inner;
        dx[i] = own < 0 ? 0 : share * (probability[i] * sum - gains[(Offset)own * classes + c]);
    }
}

// One block per pair of vectors: the sum of their squared differences, in every thread.
__device__ inline real squared_distance(const real *a, const real *b, int length) {
    const Offset start = (Offset)blockIdx.x * length;
    real square = 0;
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
        const real away = a[start + i] - b[start + i];
        square += away * away;
    }
    return block_sum(square);
}

extern "C" __global__ void contrastive_loss(
    const real *a, const real *b, const label_type *similar, real *losses, int *counts, int length,
    real margin, int legacy) {
    const real square = squared_distance(a, b, length);
    const real open = largest_of(margin - (legacy ? square : root(square)), (real)0);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = (long long)similar[blockIdx.x] != 0 ? square : legacy ? open : open * open;
        counts[blockIdx.x] = 1;
    }
}

extern "C" __global__ void contrastive_loss_backward(
    const real *dloss, const real *a, const real *b, const label_type *similar, real *da, real *db,
    int length, real margin, int legacy) {
    const real square = squared_distance(a, b, length), distance = root(square);
    const real pushed =
        legacy ? (real)(square < margin) : largest_of(margin - distance, (real)0) / (distance + (real)1e-4);
    const real slope = *dloss / (real)gridDim.x * ((long long)similar[blockIdx.x] != 0 ? 1 : -pushed);
    const Offset start = (Offset)blockIdx.x * length;
    for (int i = threadIdx.x; i < length; i += blockDim.x) {
        const real away = slope * (a[start + i] - b[start + i]);
        if (da) da[start + i] = away;
        if (db) db[start + i] = -away;
    }
}
