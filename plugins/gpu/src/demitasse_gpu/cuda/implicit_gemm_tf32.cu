// Gradients of filters in TF32 as products by tensor cores (mma.sync), for where a library's engines that add up in the
// same order in every run are slow.
//
// A block makes 64 WM x 64 WN numbers, a warp of it 64 x 64: four by eight products of 16 x 8 each. What 8 steps of the
// sum need lies in shared memory, for four times: while one is multiplied others are fetched.
#include "implicit_gemm.cuh"
#include "tensor_cores.cuh"

constexpr int kDepth = 8, kStages = 4, kWarp = 64;
constexpr int kTall = kWarp / 16, kWide = kWarp / 8;
// Units behind each point's, by which a warp's reads go to 32 banks.
constexpr int kSpare = 2;

// Of 16 x 8 and 8 x 8 numbers at `left` and `right`, whose points are `rows` and `columns` apart, what a lane holds. They
// are cut to TF32, as Hopper's instructions cut what they read from shared memory themselves.
struct Fragments {
    unsigned a[kTall][4], b[kWide][2];

    __device__ void read(const float *left, int rows, const float *right, int columns) {
        const int line = threadIdx.x % 32 / 4, deep = threadIdx.x % 4;
#pragma unroll
        for (int i = 0; i < kTall; ++i)
#pragma unroll
            for (int k = 0; k < 4; ++k)
                a[i][k] = __float_as_uint(left[(deep + k / 2 * 4) * rows + i * 16 + k % 2 * 8 + line]);
#pragma unroll
        for (int j = 0; j < kWide; ++j)
#pragma unroll
            for (int k = 0; k < 2; ++k)
                b[j][k] = __float_as_uint(right[(deep + k * 4) * columns + j * 8 + line]);
    }

    __device__ void multiply(float (&total)[kTall][kWide][4]) const {
#pragma unroll
        for (int i = 0; i < kTall; ++i)
#pragma unroll
            for (int j = 0; j < kWide; ++j) multiply_tf32(total[i][j], a[i], b[j], total[i][j]);
    }
};

template <int WM, int WN>
__device__ inline void convolve_weights_tf32(
    const Convolution &g, const float *dy, const float *x, float *dw, int parts) {
    constexpr int kRows = kWarp * WM, kColumns = kWarp * WN;
    typedef OfWeights<kRows, kColumns, 32 * WM * WN, kDepth> Operands;
    constexpr int kLeft = Operands::kLeft + kSpare, kRight = Operands::kRight + kSpare;
    __shared__ Unit left[kStages][kDepth * kLeft], right[kStages][kDepth * kRight];

    const int part = blockIdx.z % parts, group = blockIdx.z / parts;
    const Operands of(g, dy, x, part, group, parts);
    const int warp = threadIdx.x / 32, row = warp % WM * kWarp, column = warp / WM * kWarp;
    float total[kTall][kWide][4] = {};
    in_stages<kStages>(
        of.begin, of.end, [&](int chunk, int stage) { of.next(chunk, left[stage], kLeft, right[stage], kRight); },
        [&](int stage) {
            const float *of_dy = reinterpret_cast<const float *>(left[stage]) + row;
            const float *of_taps = reinterpret_cast<const float *>(right[stage]) + column;
            Fragments fragments;
            fragments.read(of_dy, kLeft * 4, of_taps, kRight * 4);
            fragments.multiply(total);
        });

    const int line = threadIdx.x % 32 / 4, pair = threadIdx.x % 4 * 2;
    dw += ((long long)part * g.groups + group) * g.outputs * of.taps;
#pragma unroll
    for (int i = 0; i < kTall * 2; ++i) {
        const int m = of.top + row + i * 8 + line;
        if (m >= g.outputs) continue;
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
            const int n = of.side + column + j * 8 + pair;
            if (n >= of.taps) continue;
            const Pack<float, 2> sums = {{total[i / 2][j][i % 2 * 2], total[i / 2][j][i % 2 * 2 + 1]}};
            *reinterpret_cast<Pack<float, 2> *>(dw + (long long)m * of.taps + n) = sums;
        }
    }
}

#define TILES(WM, WN, RESIDENT)                                                                                         \
    extern "C" __global__ __launch_bounds__(32 * WM * WN, RESIDENT) void backward_weights_tf32_##WM##x##WN(             \
        Convolution g, const float *dy, const float *x, float *dw, int parts) {                                         \
        convolve_weights_tf32<WM, WN>(g, dy, x, dw, parts);                                                             \
    }

TILES(2, 2, 2)
TILES(2, 1, 5)
TILES(1, 2, 5)
TILES(1, 4, 2)
