// Elementwise functions of arrays in the same layout.
#include "elementwise.cuh"

extern "C" __global__ void relu(const stored *x, stored *y, real slope, Offset count) {
    map(x, y, count, [&](real a) { return a > 0 ? a : slope * a; });
}

extern "C" __global__ void relu_backward(
    const stored *dy, const stored *y, stored *dx, real slope, Offset count) {
    map(dy, y, dx, count, [&](real a, real b) { return b > 0 ? a : slope * a; });
}

extern "C" __global__ void scaled(const stored *x, stored *y, real factor, Offset count) {
    map(x, y, count, [&](real a) { return factor * a; });
}

// factors[0] xs[0] + ... over the first `terms`; negative results become 0 if `rectified`, and so do all where the
// mask, if there is one, is not above 0.
struct WeightedSum {
    const stored *xs[4];
    real factors[4];
    const stored *mask;
    stored *y;
    int terms, rectified;

    template <int N> __device__ void at(Offset i) const {
        real total[N], term[N];
        load<N>(xs[0] + i, total);
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] *= factors[0];
#pragma unroll
        for (int t = 1; t < 4; ++t) {
            if (t >= terms) continue;
            load<N>(xs[t] + i, term);
#pragma unroll
            for (int k = 0; k < N; ++k) total[k] += factors[t] * term[k];
        }
        // NaN is not below 0.
        if (rectified)
#pragma unroll
            for (int k = 0; k < N; ++k) total[k] = total[k] < 0 ? 0 : total[k];
        if (mask) {
            load<N>(mask + i, term);
#pragma unroll
            for (int k = 0; k < N; ++k) total[k] = term[k] > 0 ? total[k] : 0;
        }
        store<N>(y + i, total);
    }
};

extern "C" __global__ void weighted_sum(
    const stored *x0, const stored *x1, const stored *x2, const stored *x3, stored *y, real a, real b,
    real c, real d, int terms, int rectified, const stored *mask, Offset count) {
    const WeightedSum work = {{x0, x1, x2, x3}, {a, b, c, d}, mask, y, terms, rectified};
    bool whole = is_aligned<kWidth>(y) && (!mask || is_aligned<kWidth>(mask));
    for (int t = 0; t < 4; ++t) whole = whole && (t >= terms || is_aligned<kWidth>(work.xs[t]));
    each(count, whole, work);
}

struct Masked {
    const stored *dy;
    const unsigned char *mask;
    stored *dx;
    real scale;

    template <int N> __device__ void at(Offset i) const {
        real a[N];
        load<N>(dy + i, a);
        const Pack<unsigned char, N> kept = read<N>(mask + i);
#pragma unroll
        for (int k = 0; k < N; ++k) a[k] = kept.values[k] ? a[k] * scale : a[k] * 0;
        store<N>(dx + i, a);
    }
};

extern "C" __global__ void masked(
    const stored *dy, const unsigned char *mask, stored *dx, real scale, Offset count) {
    bool whole = is_aligned<kWidth>(dy) && is_aligned<kWidth>(mask) && is_aligned<kWidth>(dx);
    each(count, whole, Masked{dy, mask, dx, scale});
}

extern "C" __global__ void accumulate(stored *total, const stored *x, Offset count) {
    map(total, x, total, count, [&](real a, real b) { return a + b; });
}
