// Sums and maxima over the threads of a block, in an order that depends on the block's size alone: the same bits in
// every run.
#pragma once
#include "numbers.cuh"

struct Plus {
    template <class T> static __device__ T of(T a, T b) { return a + b; }
};
struct Largest {
    template <class T> static __device__ T of(T a, T b) { return a > b || a != a ? a : b; }
};

// The block consists of whole warps.
template <class Join, class T> __device__ inline T over_block(T value) {
    __shared__ T parts[32];
#pragma unroll
    for (int lanes = 16; lanes; lanes /= 2) value = Join::of(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
    if (threads == 32) return value;
    __syncthreads();
    if (thread % 32 == 0) parts[thread / 32] = value;
    __syncthreads();
    T result = parts[0];
    for (int warp = 1; warp < threads / 32; ++warp) result = Join::of(result, parts[warp]);
    return result;
}

template <class T> __device__ inline T block_sum(T value) { return over_block<Plus>(value); }
template <class T> __device__ inline T block_largest(T value) { return over_block<Largest>(value); }
