// Convolutions in float32, and their gradients, as products of tiles, for any way in which a warp multiplies two tiles.
// Product is Scalar (implicit_gemm.cu), or on tensor cores Split (implicit_gemm_split.cu) or Cut
// (implicit_gemm_tf32.cu).
//
// A block has WM x WN warps. Each makes 64 x Product::kColumns numbers, and each thread 8 x kColumns / 4. Shared memory
// holds the operands for 16 terms of the sums, Product::kStages times: while some are multiplied, the next ones are
// fetched.
#pragma once
#include "implicit_gemm.cuh"

constexpr int kDepth = 16, kUnits = kDepth / 4;
constexpr int kWarpRows = 64;

// A thread's place in its block's tile: the first row and column of its warp, and its own place among 8 x 4 lanes, as
// the product wants them. The rows and columns of its numbers are relative to these.
template <class Product, int WM> struct Place {
    int row, column, down, across;
    __device__ Place() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp % WM * kWarpRows, column = warp / WM * Product::kColumns;
        down = Product::down(lane), across = Product::across(lane);
    }
};

// For rows in which the terms of a sum are consecutive: the units' places are permuted so that neighbouring rows are in
// different banks. A thread's rows are every eighth of its warp's from `down` on; its columns are four of each 16, from
// `across` * 4 on.
__device__ inline int turned_left(int row, int unit) { return row * kUnits + (unit ^ (row >> 1 & 3)); }
__device__ inline int turned_right(int row, int unit) { return row * kUnits + (unit ^ (row >> 2 & 3)); }

// How positions along an axis of the result depend on those of the input: of `count` positions, the i-th, at first + i
// * apart, is the sum over taps t of the input at start + i * step + t * tap_step times the filter's tap first_tap + t
// * taps_apart.
struct Axis {
    int count, first, apart, start, step, taps, tap_step, first_tap, taps_apart;
};

// Forward: all positions. Backward, with a stride: the positions with remainder `rest` modulo the stride see the same
// taps, every stride-th one.
__device__ inline Axis axis_of(bool backward, int rest, int made, int kernel, int stride, int pad, int dilation) {
    if (!backward) return {made, 0, 1, -pad, stride, kernel, dilation, 0, 1};
    const int first_tap = (rest + pad) % stride;
    const int taps = first_tap < kernel ? (kernel - first_tap + stride - 1) / stride : 0;
    return {(made - rest + stride - 1) / stride, rest, stride, (rest + pad - first_tap) / stride, 1, taps,
            stride == 1 ? -dilation : -1, first_tap, stride};
}

// Rows are points of y (backward: of x), columns are its channels. Filters are (outputs, taps, channels); for backward,
// those from filters_turned.
template <class Product, int WM, int WN, bool kBackward>
__device__ inline void convolve(
    const Convolution &g, const float *x, const float *w, const float *bias, float *y, int rectified, int parts) {
    constexpr int kRows = kWarpRows * WM, kColumns = Product::kColumns * WN, kThreads = 32 * WM * WN;
    constexpr int kApart = kThreads / kUnits, kOfX = kRows / kApart, kOfW = kColumns / kApart;
    __shared__ Unit left[Product::kStages][kRows * kUnits], right[Product::kStages][kColumns * kUnits];

    const int height = kBackward ? g.rows : g.height, width = kBackward ? g.columns : g.width;
    const int channels = kBackward ? g.outputs : g.channels, outputs = kBackward ? g.channels : g.outputs;
    const int rests = kBackward ? g.stride_w : 1;
    const int part = blockIdx.z % parts, group = blockIdx.z / parts % g.groups, rest = blockIdx.z / parts / g.groups;
    const Axis down = axis_of(
        kBackward, rest / rests, kBackward ? g.height : g.rows, g.kernel_h, g.stride_h, g.pad_h, g.dilation_h);
    const Axis across = axis_of(
        kBackward, rest % rests, kBackward ? g.width : g.columns, g.kernel_w, g.stride_w, g.pad_w, g.dilation_w);
    const int points = g.samples * down.count * across.count, pitch = g.groups * channels;
    const int tiles = (outputs + kColumns - 1) / kColumns;
    const int top = blockIdx.x / tiles * kRows, side = blockIdx.x % tiles * kColumns;
    if (top >= points) return;

    // This thread fetches one unit of every kApart-th row of both operands.
    const int unit = threadIdx.x % kUnits, row = threadIdx.x / kUnits;
    int from[kOfX], at[kOfX];  // where a row's first tap would be: offset, and line and column in 16 bits each
#pragma unroll
    for (int i = 0; i < kOfX; ++i) {
        const int m = top + row + i * kApart;
        const int n = m / (down.count * across.count), within = m % (down.count * across.count);
        const int h = m < points ? within / across.count * down.step + down.start : -(1 << 14);
        const int v = within % across.count * across.step + across.start;
        from[i] = m < points ? ((n * height + h) * width + v) * pitch + group * channels : 0;
        at[i] = h << 16 | (v & 0xffff);
    }
    const int filter = g.kernel_h * g.kernel_w * channels, filters = (group * outputs + side + row) * filter;
    const int chunks = (down.taps * across.taps * channels + kDepth - 1) / kDepth, each = (chunks + parts - 1) / parts;
    const int begin = part * each, end = least_of(chunks, begin + each);
    int tap_h = 0, tap_w = 0, channel = begin * kDepth + unit * 4;
    if (begin < end) {
        const int tap = channel / channels;
        channel %= channels, tap_h = tap / across.taps, tap_w = tap % across.taps;
    }

    const auto next = [&](int stage) {
        const bool there = tap_h < down.taps;
        const int at_h = tap_h * down.tap_step, at_w = tap_w * across.tap_step;
        const int moved = (at_h * width + at_w) * pitch + channel;
#pragma unroll
        for (int i = 0; i < kOfX; ++i) {
            const bool inside = there && (unsigned)((at[i] >> 16) + at_h) < (unsigned)height &&
                                (unsigned)((short)at[i] + at_w) < (unsigned)width;
            const int r = row + i * kApart;
            fetch(&left[stage][turned_left(r, unit)], inside ? x + (from[i] + moved) : x, inside);
        }
        const int tap = filters + channel + channels * ((down.first_tap + tap_h * down.taps_apart) * g.kernel_w +
                                                        across.first_tap + tap_w * across.taps_apart);
#pragma unroll
        for (int i = 0; i < kOfW; ++i) {
            const int r = row + i * kApart;
            const bool inside = there && side + r < outputs;
            const float *place = inside ? w + (tap + i * kApart * filter) : w;
            fetch(&right[stage][turned_right(r, unit)], place, inside);
        }
        end_group();
        for (channel += kDepth; channel >= channels; channel -= channels)
            if (++tap_w == across.taps) tap_w = 0, ++tap_h;
    };

    const Place<Product, WM> here;
    float total[8][Product::kColumns / 4] = {};
    in_stages<Product::kStages>(begin, end, [&](int chunk, int stage) { next(stage); }, [&](int stage) {
        Product::of_lines(left[stage] + here.row * kUnits, right[stage] + here.column * kUnits, here, total);
    });

    const int made = g.groups * outputs;
    y += part * ((long long)g.samples * (kBackward ? g.height * g.width : g.rows * g.columns) * made);
#pragma unroll
    for (int j = 0; j < Product::kColumns / 16; ++j) {
        const int n = side + here.column + here.across * 4 + j * 16;
        if (n >= outputs) continue;
        Unit level = {};
        if (bias) level = *reinterpret_cast<const Unit *>(bias + group * outputs + n);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int m = top + here.row + here.down + i * 8;
            if (m >= points) continue;
            long long point = m;
            if (kBackward && down.apart * across.apart > 1) {
                const int sample = m / (down.count * across.count), within = m % (down.count * across.count);
                point = (sample * g.height + down.first + within / across.count * down.apart) * (long long)g.width +
                        across.first + within % across.count * across.apart;
            }
            Unit sum;
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                sum.values[k] = total[i][j * 4 + k] + level.values[k];
                if (rectified) sum.values[k] = sum.values[k] < 0 ? 0 : sum.values[k];
            }
            *reinterpret_cast<Unit *>(y + point * made + group * outputs + n) = sum;
        }
    }
}

// Rows are a group's outputs, columns are its taps. The sum over points of y is `added` to what is there.
template <class Product, int WM, int WN>
__device__ inline void convolve_weights(
    const Convolution &g, const float *dy, const float *x, float *dw, int parts, int added) {
    constexpr int kRows = kWarpRows * WM, kColumns = Product::kColumns * WN;
    typedef OfWeights<kRows, kColumns, 32 * WM * WN, kDepth, Product::kTurned> Operands;
    constexpr int kLeft = Operands::kLeft, kRight = Operands::kRight;
    __shared__ Unit left[Product::kStages][kDepth * kLeft], right[Product::kStages][kDepth * kRight];

    const int part = blockIdx.z % parts, group = blockIdx.z / parts;
    const Operands of(g, dy, x, part, group, parts);
    const Place<Product, WM> here;
    float total[8][Product::kColumns / 4] = {};
    in_stages<Product::kStages>(
        of.begin, of.end, [&](int chunk, int stage) { of.next(chunk, left[stage], right[stage]); },
        [&](int stage) {
            Product::template of_terms<kLeft, kRight>(
                left[stage] + here.row / 4, right[stage] + here.column / 4, here, total);
        });

    typedef Pack<float, Product::kTogether> Sums;
    dw += ((long long)part * g.groups + group) * g.outputs * of.taps;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int m = of.top + here.row + Product::row_of_terms(i, here.down);
        if (m >= g.outputs) continue;
#pragma unroll
        for (int j = 0; j < Product::kColumns / 4 / Product::kTogether; ++j) {
            const int n = of.side + here.column + Product::column_of_terms(j, here.across);
            if (n >= of.taps) continue;
            Sums *place = reinterpret_cast<Sums *>(dw + (long long)m * of.taps + n), sums = {};
            if (added) sums = *place;
#pragma unroll
            for (int k = 0; k < Product::kTogether; ++k) sums.values[k] += total[i][j * Product::kTogether + k];
            *place = sums;
        }
    }
}

// A kernel per tile size: large tiles read less, small ones leave fewer multiprocessors idle. A multiprocessor runs
// RESIDENT blocks at a time.
#define TILES(PRODUCT, NAME, WM, WN, RESIDENT)                                                                          \
    extern "C" __global__ __launch_bounds__(32 * WM * WN, RESIDENT) void convolution_##NAME##WM##x##WN(                 \
        Convolution g, const float *x, const float *w, const float *bias, float *y, int rectified, int parts) {         \
        convolve<PRODUCT, WM, WN, false>(g, x, w, bias, y, rectified, parts);                                           \
    }                                                                                                                   \
    extern "C" __global__ __launch_bounds__(32 * WM * WN, RESIDENT) void backward_data_##NAME##WM##x##WN(               \
        Convolution g, const float *dy, const float *w, float *dx, int parts) {                                         \
        convolve<PRODUCT, WM, WN, true>(g, dy, w, nullptr, dx, 0, parts);                                               \
    }                                                                                                                   \
    extern "C" __global__ __launch_bounds__(32 * WM * WN, RESIDENT) void backward_weights_##NAME##WM##x##WN(            \
        Convolution g, const float *dy, const float *x, float *dw, int parts, int added) {                              \
        convolve_weights<PRODUCT, WM, WN>(g, dy, x, dw, parts, added);                                                  \
    }
