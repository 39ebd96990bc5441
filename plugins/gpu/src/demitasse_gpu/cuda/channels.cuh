// Sums over all but the channels of an array, and work on each element with numbers of its channel.
//
// Arrays are outer x channels x inner in memory. With inner = 1 (images in NHWC, vectors) they are walked
// as lines: the block is so many groups of channels wide (x) and so many lines high (y), and a thread keeps
// its channels' numbers in registers. Else (NCHW) they are walked as planes, a row of the block's threads to
// each.
//
// Sums are made in two steps, in an order that the launch's shape alone decides: `slabs` blocks leave
// partial sums of the type of sums, then those of each channel are added up in double.
#pragma once
#include "reductions.cuh"

constexpr int kThreads = 256;

struct Extents {
    long long outer;
    int channels, inner;
};

// visit(numbers, i) for all groups of N channels of this thread's lines, numbers being those that
// term.start<N>(channel) gives. N is kWidth where it divides the channels, as all arrays are aligned as the
// plan's memory is.
template <int N, class Term, class Visit>
__device__ inline void lines(const Extents &s, const Term &term, Visit &visit) {
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (channel >= s.channels) return;
    const auto numbers = term.template start<N>(channel);
#pragma unroll 4
    for (Offset line = (Offset)blockIdx.y * blockDim.y + threadIdx.y; line < s.outer;
         line += (Offset)gridDim.y * blockDim.y)
        visit(numbers, line * s.channels + channel);
}

// What a term adds to two sums for each of N channels.
template <int N, class Term> struct Adding {
    const Term &term;
    real first[N], second[N];

    template <class Numbers> __device__ void operator()(const Numbers &numbers, Offset i) {
        term.template add<N>(numbers, i, first, second);
    }
};

template <int N, class Term> struct Applying {
    const Term &term;

    template <class Numbers> __device__ void operator()(const Numbers &numbers, Offset i) {
        term.template apply<N>(numbers, i);
    }
};

// Two sums for each channel of what term.add<N>(numbers, i, first, second) adds for the N elements from i
// on: partial[slab][2][channels].
template <int N, class Term>
__device__ inline void sums_of_lines(const Extents &s, real *partial, const Term &term) {
    __shared__ real parts[2][kThreads * N];
    Adding<N, Term> sums = {term, {}, {}};
    lines<N>(s, term, sums);
    const int width = blockDim.x * N, place = threadIdx.y * width + threadIdx.x * N;
#pragma unroll
    for (int k = 0; k < N; ++k) parts[0][place + k] = sums.first[k], parts[1][place + k] = sums.second[k];
    __syncthreads();
    for (int column = threadIdx.y * blockDim.x + threadIdx.x; column < 2 * width;
         column += blockDim.x * blockDim.y) {
        const int which = column / width, channel = blockIdx.x * width + column % width;
        if (channel >= s.channels) continue;
        real total = 0;
        for (int y = 0; y < (int)blockDim.y; ++y) total += parts[which][y * width + column % width];
        partial[((Offset)blockIdx.y * 2 + which) * s.channels + channel] = total;
    }
}

// visit(numbers, i) for the elements of the plane that starts at `start`, by the threads of a row of the
// block.
template <class Numbers, class Visit>
__device__ inline void plane(const Extents &s, Offset start, const Numbers &numbers, Visit &visit) {
#pragma unroll 4
    for (int i = threadIdx.x; i < s.inner; i += blockDim.x) visit(numbers, start + i);
}

template <class Term>
__device__ inline void sums_of_planes(const Extents &s, real *partial, const Term &term) {
    const int channel = blockIdx.x;
    const auto numbers = term.template start<1>(channel);
    Adding<1, Term> sums = {term, {}, {}};
    for (Offset line = (Offset)blockIdx.y * blockDim.y + threadIdx.y; line < s.outer;
         line += (Offset)gridDim.y * blockDim.y)
        plane(s, (line * s.channels + channel) * s.inner, numbers, sums);
    const real totals[2] = {block_sum(sums.first[0]), block_sum(sums.second[0])};
    if (threadIdx.x == 0 && threadIdx.y == 0)
        for (int which = 0; which < 2; ++which)
            partial[((Offset)blockIdx.y * 2 + which) * s.channels + channel] = totals[which];
}

template <class Term> __device__ inline void sums(const Extents &s, real *partial, const Term &term) {
    if (s.inner > 1)
        sums_of_planes(s, partial, term);
    else if (s.channels % kWidth)
        sums_of_lines<1>(s, partial, term);
    else
        sums_of_lines<kWidth>(s, partial, term);
}

// term.apply<N>(numbers, i) for all elements.
template <class Term> __device__ inline void everywhere(const Extents &s, const Term &term) {
    if (s.inner == 1 && s.channels % kWidth) {
        Applying<1, Term> one = {term};
        lines<1>(s, term, one);
    } else if (s.inner == 1) {
        Applying<kWidth, Term> some = {term};
        lines<kWidth>(s, term, some);
    } else {
        Applying<1, Term> one = {term};
        for (Offset p = (Offset)blockIdx.x * blockDim.y + threadIdx.y; p < s.outer * s.channels;
             p += (Offset)gridDim.x * blockDim.y)
            plane(s, p * s.inner, term.template start<1>((int)((unsigned)p % (unsigned)s.channels)), one);
    }
}

// Blocks that settle channels: one channel to a column of threads, which share its slabs.
constexpr int kColumns = 32, kShares = 16;

__device__ inline int settled_channel() { return blockIdx.x * kColumns + threadIdx.x; }

// The sums of this column's channel over all slabs; true in the column's first thread, where they are, if
// there is such a channel.
__device__ inline bool channel_sums(const real *partial, int slabs, int channels, double &first, double &second) {
    __shared__ double parts[2][kShares][kColumns];
    const int channel = settled_channel();
    first = second = 0;
    if (channel < channels)
#pragma unroll 4
        for (int slab = threadIdx.y; slab < slabs; slab += kShares) {
            first += partial[((Offset)slab * 2) * channels + channel];
            second += partial[((Offset)slab * 2 + 1) * channels + channel];
        }
    parts[0][threadIdx.y][threadIdx.x] = first;
    parts[1][threadIdx.y][threadIdx.x] = second;
    __syncthreads();
    if (threadIdx.y || channel >= channels) return false;
    for (int y = 1; y < kShares; ++y) {
        first += parts[0][y][threadIdx.x];
        second += parts[1][y][threadIdx.x];
    }
    return true;
}
