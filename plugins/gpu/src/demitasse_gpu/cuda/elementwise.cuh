// Elementwise functions of one or two arrays in the same layout.
#pragma once
#include "numbers.cuh"

// The output may be one of the inputs: each thread reads its elements before it writes them.
template <class F> struct OfOne {
    const stored *x;
    stored *y;
    F f;

    template <int N> __device__ void at(Offset i) const {
        real a[N];
        load<N>(x + i, a);
#pragma unroll
        for (int k = 0; k < N; ++k) a[k] = f(a[k]);
        store<N>(y + i, a);
    }
};

template <class F> struct OfTwo {
    const stored *x, *y;
    stored *z;
    F f;

    template <int N> __device__ void at(Offset i) const {
        real a[N], b[N];
        load<N>(x + i, a);
        load<N>(y + i, b);
#pragma unroll
        for (int k = 0; k < N; ++k) a[k] = f(a[k], b[k]);
        store<N>(z + i, a);
    }
};

template <class F> __device__ inline void map(const stored *x, stored *y, Offset count, F f) {
    each(count, is_aligned<kWidth>(x) && is_aligned<kWidth>(y), OfOne<F>{x, y, f});
}

template <class F>
__device__ inline void map(const stored *x, const stored *y, stored *z, Offset count, F f) {
    each(count, is_aligned<kWidth>(x) && is_aligned<kWidth>(y) && is_aligned<kWidth>(z), OfTwo<F>{x, y, z, f});
}
