// Convolutions in float32, and their gradients, as sums of products that no tensor core makes; and what goes around these
// where they are made in parts or of turned filters.
#include "implicit_gemm_tiles.cuh"

// One product after the other. Neighbouring lanes share rows, so that two lanes' 16 bytes are read at once.
struct Plain {
    static constexpr int kStages = 2, kSpare = 0;

    static __device__ int down(int lane) { return lane >> 1 & 7; }
    static __device__ int across(int lane) { return (lane & 1) | lane >> 4 << 1; }

    template <class Place>
    static __device__ void of_lines(const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        left += here.down * kUnits, right += here.across * 4 * kUnits;
#pragma unroll
        for (int k = 0; k < kUnits; ++k) {
            Unit a[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) a[i] = left[i * 8 * kUnits + (k ^ here.down >> 1)];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const Unit b = right[(j % 4 + j / 4 * 16) * kUnits + (k ^ here.across)];
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int i = 0; i < 8; ++i) total[i][j] += a[i].values[e] * b.values[e];
            }
        }
    }

    template <int kLeft, int kRight, class Place>
    static __device__ void of_terms(const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        left += here.down, right += here.across;
#pragma unroll
        for (int k = 0; k < kDepth; ++k) {
            const Unit a[2] = {left[k * kLeft], left[k * kLeft + 8]};
            const Unit b[2] = {right[k * kRight], right[k * kRight + 4]};
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) total[i][j] += a[i / 4].values[i % 4] * b[j / 4].values[j % 4];
        }
    }
};

TILES(Plain, , 2, 4, 2)
TILES(Plain, , 2, 2, 3)
TILES(Plain, , 1, 4, 3)
TILES(Plain, , 1, 2, 6)

// Filters (outputs, taps, channels of a group) as (channels, taps, outputs of a group): `count` numbers.
extern "C" __global__ void filters_turned(
    const float *w, float *turned, int taps, int channels, int outputs, unsigned count) {
    for (unsigned i = (unsigned)thread_of_grid(); i < count; i += (unsigned)threads_of_grid()) {
        const unsigned output = i % outputs, line = i / outputs, tap = line % taps, channel = line / taps;
        const unsigned group = channel / channels;
        turned[i] = w[((group * outputs + output) * taps + tap) * channels + channel % channels];
    }
}

// The sums of parts of `count` units each, with a bias and without what is below 0 where it is rectified; `across`
// units are a point.
extern "C" __global__ void join_parts(
    const float *partial, const float *bias, float *y, int parts, int rectified, int across, long long count) {
    for (long long i = thread_of_grid(); i < count; i += threads_of_grid()) {
        Unit sum = {};
        if (bias) sum = reinterpret_cast<const Unit *>(bias)[i % across];
        for (int part = 0; part < parts; ++part) {
            const Unit more = reinterpret_cast<const Unit *>(partial)[part * count + i];
#pragma unroll
            for (int k = 0; k < 4; ++k) sum.values[k] += more.values[k];
        }
#pragma unroll
        for (int k = 0; k < 4; ++k)
            if (rectified) sum.values[k] = sum.values[k] < 0 ? 0 : sum.values[k];
        reinterpret_cast<Unit *>(y)[i] = sum;
    }
}
