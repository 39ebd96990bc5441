// Sums and largest of the numbers of a block's threads, in an order that depends on nothing but the
// block's size: the same bits in every run.
#pragma once
#include "numbers.cuh"

struct Plus {
    template <class T> static __device__ T of(T a, T b) { return a + b; }
};
struct Largest {
    template <class T> static __device__ T of(T a, T b) { return a > b || a != a ? a : b; }
};

// The block is a row of threads, whole warps.
template <class Join, class T> __device__ inline T over_block(T value) {
    __shared__ T parts[32];
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    if (blockDim.x == 32) return value;
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    T result = parts[0];
    for (int warp = 1; warp < (int)blockDim.x / 32; ++warp) result = Join::of(result, parts[warp]);
    return result;
}

template <class T> __device__ inline T block_sum(T value) { return over_block<Plus>(value); }
template <class T> __device__ inline T block_largest(T value) { return over_block<Largest>(value); }
