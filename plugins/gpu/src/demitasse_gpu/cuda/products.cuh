// The product of two matrices by tiles of 64 x 64 in shared memory, wherever the matrices' elements come from: the
// fallback without a library.
#pragma once
#include "numbers.cuh"

constexpr int kTile = 64, kDepth = 16, kPerThread = 4;  // blocks of 16 x 16 threads, in a row

// Calls store(m, n, the sum over k from `begin` up to `end` of left(m, k) * right(k, n)) for this block's tile of the
// columns from `side` on. left and right are only called inside their bounds. `left_along` and `right_along` say that
// neighbours along k, rather than along m or n, are neighbours in memory.
template <class Left, class Right, class Store>
__device__ inline void product_at(
    Offset side, Offset rows, Offset columns, Offset begin, Offset end, bool left_along, bool right_along,
    Left left, Right right, Store store) {
    __shared__ real a[kDepth][kTile + 1], b[kDepth][kTile + 1];
    const Offset top = (Offset)blockIdx.x * kTile;
    const int row = threadIdx.x / 16, column = threadIdx.x % 16;
    real total[kPerThread][kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) total[i][j] = 0;
    for (Offset at = begin; at < end; at += kDepth) {
        for (int e = threadIdx.x; e < kTile * kDepth; e += 256) {
            int deep = left_along ? e % kDepth : e / kTile, across = left_along ? e / kDepth : e % kTile;
            a[deep][across] = at + deep < end && top + across < rows ? left(top + across, at + deep) : 0;
            deep = right_along ? e % kDepth : e / kTile, across = right_along ? e / kDepth : e % kTile;
            b[deep][across] = at + deep < end && side + across < columns ? right(at + deep, side + across) : 0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kDepth; ++k) {
            real x[kPerThread], y[kPerThread];
#pragma unroll
            for (int i = 0; i < kPerThread; ++i) x[i] = a[k][row + 16 * i], y[i] = b[k][column + 16 * i];
#pragma unroll
            for (int i = 0; i < kPerThread; ++i)
#pragma unroll
                for (int j = 0; j < kPerThread; ++j) total[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < kPerThread; ++i)
#pragma unroll
        for (int j = 0; j < kPerThread; ++j) {
            const Offset m = top + row + 16 * i, n = side + column + 16 * j;
            if (m < rows && n < columns) store(m, n, total[i][j]);
        }
}

// The same for all tiles of this block: several if there are more columns than a grid has blocks for.
template <class Left, class Right, class Store>
__device__ inline void product(
    Offset rows, Offset columns, Offset begin, Offset end, bool left_along, bool right_along, Left left,
    Right right, Store store) {
    for (Offset side = (Offset)blockIdx.y * kTile; side < columns; side += (Offset)gridDim.y * kTile)
        product_at(side, rows, columns, begin, end, left_along, right_along, left, right, store);
}
