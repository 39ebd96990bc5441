// Local response normalisation: y = x * scale^-beta, scale = k + share * the sum of squares around.
//
// Arrays are outer x channels x inner in memory: inner is a plane in NCHW, 1 in NHWC. Scale has the type of sums, since
// the gradient divides by it.
#include "numbers.cuh"

constexpr int kUsual = 2;  // the reach of windows of five, which the papers' nets have

// N consecutive channels with N on each side, for channels that are consecutive in memory and windows that reach no
// further. Every element is read from the L1 cache by three threads, not by 2 * reach + 1.
template <int N> struct Neighbours {
    bool below, above;  // whether there are channels

    __device__ Neighbours(Offset i, int channels) {
        const int c = (int)((unsigned)i % (unsigned)channels);
        below = c > 0;
        above = c + N < channels;
    }
    template <class T> __device__ void load_around(const T *p, real (&a)[3 * N]) const {
        real part[N];
#pragma unroll
        for (int side = 0; side < 3; ++side) {
            const bool there = side == 1 || (side == 0 ? below : above);
            if (there) load<N>(p + (side - 1) * N, part);
#pragma unroll
            for (int k = 0; k < N; ++k) a[side * N + k] = there ? part[k] : 0;
        }
    }
};

// The sum over the window around element k of the middle pack. kReach is its reach, or 0 if only the launch knows it.
template <int N, int kReach> __device__ inline real window(const real (&a)[3 * N], int k, int reach) {
    constexpr int most = kReach ? kReach : N;
    real sum = 0;
#pragma unroll
    for (int d = -most; d <= most; ++d)
        if (kReach || (d >= -reach && d <= reach)) sum += a[N + k + d];
    return sum;
}

template <int N, int kReach>
__device__ inline void across_packs(
    const stored *x, stored *y, real *scale, int channels, int reach, real share, real beta, real k0,
    Offset count) {
    for (Offset i = thread_of_grid() * N; i < count; i += threads_of_grid() * N) {
        real a[3 * N], own[N], s[N];
        Neighbours<N>(i, channels).load_around(x + i, a);
#pragma unroll
        for (int k = 0; k < N; ++k) own[k] = a[N + k];
#pragma unroll
        for (int k = 0; k < 3 * N; ++k) a[k] *= a[k];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            s[k] = k0 + share * window<N, kReach>(a, k, reach);
            own[k] *= negative_power(s[k], beta);
        }
        store<N>(y + i, own);
        if (scale) store<N>(scale + i, s);
    }
}

template <int N, int kReach>
__device__ inline void across_packs_backward(
    const stored *dy, const stored *x, const stored *y, const real *scale, stored *dx, int channels,
    int reach, real share, real beta, Offset count) {
    for (Offset i = thread_of_grid() * N; i < count; i += threads_of_grid() * N) {
        const Neighbours<N> near(i, channels);
        real slope[3 * N], other[3 * N], direct[N], own[N];
        near.load_around(dy + i, slope);
#pragma unroll
        for (int k = 0; k < N; ++k) direct[k] = slope[N + k];
        near.load_around(y + i, other);
#pragma unroll
        for (int k = 0; k < 3 * N; ++k) slope[k] *= other[k];
        near.load_around(scale + i, other);
#pragma unroll
        for (int k = 0; k < 3 * N; ++k) slope[k] = other[k] != 0 ? quick_ratio(slope[k], other[k]) : 0;  // 0: beyond
        load<N>(x + i, own);
#pragma unroll
        for (int k = 0; k < N; ++k)
            own[k] = direct[k] * negative_power(other[N + k], beta) -
                     2 * share * beta * own[k] * window<N, kReach>(slope, k, reach);
        store<N>(dx + i, own);
    }
}

// The window in all other cases, whose elements are `inner` apart.
template <class F> __device__ inline void around_channel(Offset i, int channels, int inner, int reach, F f) {
    const int c = (int)((unsigned)i / inner % channels);
    const int first = largest_of(c - reach, 0), last = least_of(c + reach, channels - 1);
    for (int other = first; other <= last; ++other) f(i + (Offset)(other - c) * inner);
}

extern "C" __global__ void across_channels(
    const stored *x, stored *y, real *scale, int channels, int inner, int reach, real share, real beta,
    real k, Offset count) {
    if (inner == 1 && channels % kWidth == 0 && reach <= kWidth) {
        if (reach == kUsual)
            across_packs<kWidth, kUsual>(x, y, scale, channels, reach, share, beta, k, count);
        else
            across_packs<kWidth, 0>(x, y, scale, channels, reach, share, beta, k, count);
        return;
    }
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        real squares = 0;
        around_channel(i, channels, inner, reach, [&](Offset j) {
            const real a = (real)widened(x[j]);
            squares += a * a;
        });
        const real s = k + share * squares;
        y[i] = Narrow<stored>::of((real)widened(x[i]) * negative_power(s, beta));
        if (scale) scale[i] = s;
    }
}

extern "C" __global__ void across_channels_backward(
    const stored *dy, const stored *x, const stored *y, const real *scale, stored *dx, int channels,
    int inner, int reach, real share, real beta, Offset count) {
    if (inner == 1 && channels % kWidth == 0 && reach <= kWidth) {
        if (reach == kUsual)
            across_packs_backward<kWidth, kUsual>(dy, x, y, scale, dx, channels, reach, share, beta, count);
        else
            across_packs_backward<kWidth, 0>(dy, x, y, scale, dx, channels, reach, share, beta, count);
        return;
    }
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        real shared = 0;
        around_channel(i, channels, inner, reach, [&](Offset j) {
            shared += (real)widened(dy[j]) * (real)widened(y[j]) / scale[j];
        });
        const real direct = (real)widened(dy[i]) * negative_power(scale[i], beta);
        dx[i] = Narrow<stored>::of(direct - 2 * share * beta * (real)widened(x[i]) * shared);
    }
}

// Calls f(j) for each element of the square around element i that lies in i's plane of height x width; step is the
// distance of neighbours in memory.
template <class F>
__device__ inline void around(Offset i, int height, int width, int step, int reach, F f) {
    const int point = (int)((unsigned)i / step % (unsigned)(height * width)), h = point / width, w = point % width;
    for (int a = largest_of(-reach, -h); a <= least_of(reach, height - 1 - h); ++a)
        for (int b = largest_of(-reach, -w); b <= least_of(reach, width - 1 - w); ++b)
            f(i + ((Offset)a * width + b) * step);
}

extern "C" __global__ void within_channel(
    const stored *x, stored *y, real *scale, int height, int width, int step, int reach, real share,
    real beta, real k, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        real squares = 0;
        around(i, height, width, step, reach, [&](Offset j) {
            const real a = (real)widened(x[j]);
            squares += a * a;
        });
        const real s = k + share * squares;
        y[i] = Narrow<stored>::of((real)widened(x[i]) * negative_power(s, beta));
        if (scale) scale[i] = s;
    }
}

extern "C" __global__ void within_channel_backward(
    const stored *dy, const stored *x, const stored *y, const real *scale, stored *dx, int height,
    int width, int step, int reach, real share, real beta, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        real shared = 0;
        around(i, height, width, step, reach, [&](Offset j) {
            shared += (real)widened(dy[j]) * (real)widened(y[j]) / scale[j];
        });
        const real direct = (real)widened(dy[i]) * negative_power(scale[i], beta);
        dx[i] = Narrow<stored>::of(direct - 2 * share * beta * (real)widened(x[i]) * shared);
    }
}
