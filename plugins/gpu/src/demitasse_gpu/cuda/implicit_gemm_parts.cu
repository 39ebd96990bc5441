// Kernels around tiled convolutions: the transposition of filters for gradients of images, and the addition of partial
// sums.
#include "implicit_gemm.cuh"

// Filters (outputs, taps, channels per group) as (channels, taps, outputs per group): `count` numbers.
extern "C" __global__ void filters_turned(
    const float *w, float *turned, int taps, int channels, int outputs, unsigned count) {
    for (unsigned i = (unsigned)thread_of_grid(); i < count; i += (unsigned)threads_of_grid()) {
        const unsigned output = i % outputs, line = i / outputs, tap = line % taps, channel = line / taps;
        const unsigned group = channel / channels;
        turned[i] = w[((group * outputs + output) * taps + tap) * channels + channel % channels];
    }
}

// Adds up parts of `count` units each, adds a bias, and sets negative results to 0 if `rectified`; a point has `across`
// units.
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
