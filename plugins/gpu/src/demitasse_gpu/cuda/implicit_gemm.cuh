// Convolutions of images with channels innermost (NHWC, filters KRSC) as products of matrices that are never written to
// memory (implicit GEMM): how their operands come to shared memory, 16 bytes at a time.
//
// A block makes a tile of the product. Channels are multiples of four. Sums are split into `parts`, which join_parts
// adds up in their order.
#pragma once
#include "asynchronous_copies.cuh"
#include "numbers.cuh"

typedef Pack<float, 4> Unit;

// Copies a unit from global to shared memory; zeros if it is not `there`.
__device__ inline void fetch(Unit *to, const float *from, bool there) { copy_16_bytes(to, from, there); }

// Calls fetch(chunk, stage) for the chunks from `begin` up to `end`, kStages - 1 chunks ahead of multiply(stage). A
// stage is fetched again once all threads have multiplied what it held.
template <int kStages, class Fetch, class Multiply>
__device__ inline void in_stages(int begin, int end, const Fetch &fetch, const Multiply &multiply) {
    const auto ahead = [&](int chunk, int stage) {
        if (chunk < end)
            fetch(chunk, stage);
        else
            end_group();  // empty, so that the last groups are always those of the next chunks
    };
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) ahead(begin + stage, stage);
    int stage = 0;
    for (int chunk = begin; chunk < end; ++chunk) {
        wait_for_groups<kStages - 2>();
        __syncthreads();
        ahead(chunk + kStages - 1, stage == 0 ? kStages - 1 : stage - 1);
        multiply(stage);
        stage = stage == kStages - 1 ? 0 : stage + 1;
    }
}

// Offsets in x, y and w are below 2^31; positions along their extents, with padding, are below 2^14.
struct Convolution {
    int samples, groups, channels, outputs;  // channels per group of x, and of y
    int height, width, rows, columns;        // of x and of y
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    Divisor by_rows, by_columns;             // of y
};

// The operands of a filter's gradient, in chunks of kDepth points: rows are a group's outputs, columns are its taps
// (filter row, column, channel). Each thread fetches the same units of every chunk, at points a fixed distance apart.
template <int kRows, int kColumns, int kThreads, int kDepth, bool kTurned> struct OfWeights {
    static constexpr int kLeft = kRows / 4, kRight = kColumns / 4;  // units per point
    static constexpr int kLeftApart = kThreads / kLeft, kRightApart = kThreads / kRight;

    const Convolution &g;
    const float *dy, *x;
    int points, taps, top, side, begin, end;
    int output, channel, at_h, at_w;
    bool is_tap;

    __device__ OfWeights(const Convolution &g, const float *dy, const float *x, int part, int group, int parts)
        : g(g), dy(dy), x(x) {
        points = g.samples * g.rows * g.columns, taps = g.kernel_h * g.kernel_w * g.channels;
        const int tiles = (taps + kColumns - 1) / kColumns;
        top = blockIdx.x / tiles * kRows, side = blockIdx.x % tiles * kColumns;
        const int chunks = (points + kDepth - 1) / kDepth, each = (chunks + parts - 1) / parts;
        begin = part * each, end = least_of(chunks, begin + each);
        const int within = top + threadIdx.x % kLeft * 4, tap = side + threadIdx.x % kRight * 4;
        output = within < g.outputs ? group * g.outputs + within : -1;
        is_tap = tap < taps;
        const int place = tap / g.channels;
        channel = group * g.channels + tap % g.channels;
        at_h = place / g.kernel_w * g.dilation_h - g.pad_h, at_w = place % g.kernel_w * g.dilation_w - g.pad_w;
    }

    // A point's units, one after the other, or permuted: then eight lanes that read two neighbours of each of four
    // points read from 32 banks.
    static __device__ int placed(int depth, int unit) { return kTurned ? unit ^ (depth & 3) << 1 : unit; }

    __device__ void next(int chunk, Unit *left, Unit *right) const {
#pragma unroll
        for (int i = 0; i < kDepth / kLeftApart; ++i) {
            const int depth = threadIdx.x / kLeft + i * kLeftApart, point = chunk * kDepth + depth;
            const bool inside = point < points && output >= 0;
            const float *from = dy + (long long)point * (g.groups * g.outputs) + output;
            fetch(left + depth * kLeft + placed(depth, threadIdx.x % kLeft), inside ? from : dy, inside);
        }
#pragma unroll
        for (int i = 0; i < kDepth / kRightApart; ++i) {
            const int depth = threadIdx.x / kRight + i * kRightApart, point = chunk * kDepth + depth;
            unsigned line = point;
            const int column = divided(line, g.by_columns);
            unsigned sample = line;
            const int h = (int)divided(sample, g.by_rows) * g.stride_h + at_h, v = column * g.stride_w + at_w;
            const bool inside = point < points && is_tap && (unsigned)h < (unsigned)g.height &&
                                (unsigned)v < (unsigned)g.width;
            const float *from = x + (((int)sample * g.height + h) * g.width + v) * (g.groups * g.channels) + channel;
            fetch(right + depth * kRight + placed(depth, threadIdx.x % kRight), inside ? from : x, inside);
        }
        end_group();
    }
};
