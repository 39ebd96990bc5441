// Sums over everything but the channels of an array, and elementwise work that uses numbers of the element's channel.
//
// Arrays are outer x channels x inner in memory. With inner = 1 (images in NHWC, vectors) they are walked as lines: a
// block is some groups of channels wide (x) and some lines high (y), and a thread keeps its channels' numbers in
// registers. Otherwise (NCHW) they are walked as planes, with a row of the block's threads per plane.
//
// A term first reads what it needs of N elements (read<N>), then uses it (add<N> or apply<N>).
//
// Sums are made in two steps, in an order that depends on the launch's shape alone: `slabs` blocks write partial sums
// in the type of sums, then those of each channel are added up in double.
#pragma once
#include "reductions.cuh"

constexpr int kThreads = 256;

struct Extents {
    long long outer;
    int channels, inner;
};

// What terms read: N elements as stored, of one or several arrays.
template <int N> struct One {
    Pack<stored, N> a;
};
template <int N> struct Two {
    Pack<stored, N> a, b;
};
template <int N> struct Four {
    Pack<stored, N> a, b, c, d;
};

// The blocks that a multiprocessor runs at a time (kernels/batch_normalization.py). This leaves a thread 64 registers,
// or 80 if they hold eight channels' numbers, or doubles.
constexpr int kResident = sizeof(stored) == 4 ? 4 : 3;

// How many groups of elements are read before the first is used. Reads under way keep the memory busy, and the compiler
// does not move a read ahead of a write. The groups are in registers, of which eight channels' numbers leave fewer.
template <class Read> constexpr int kAhead = least_of(4, largest_of(1, (sizeof(stored) == 2 ? 64 : 128) / (int)sizeof(Read)));

// Calls visit(numbers, read, i) for `count` groups of N elements, from `i` on and `step` apart.
template <int N, class Term, class Numbers, class Visit>
__device__ inline void each_read(
    const Term &term, const Numbers &numbers, Offset i, Offset step, Offset count, Visit &visit) {
    using Read = decltype(term.template read<N>(i));
    constexpr int ahead = kAhead<Read>;
    Read reads[ahead];
    for (; count >= ahead; count -= ahead, i += ahead * step) {
#pragma unroll
        for (int k = 0; k < ahead; ++k) reads[k] = term.template read<N>(i + k * step);
#pragma unroll
        for (int k = 0; k < ahead; ++k) visit(numbers, reads[k], i + k * step);
    }
    for (; count > 0; --count, i += step) {
        reads[0] = term.template read<N>(i);
        visit(numbers, reads[0], i);
    }
}

// Visits all groups of N channels in this thread's lines, with the numbers from term.start<N>(channel). N is kWidth if
// that divides the channels, as all arrays are aligned like the plan's memory.
template <int N, class Term, class Visit>
__device__ inline void lines(const Extents &s, const Term &term, Visit &visit) {
    const int channel = (blockIdx.x * blockDim.x + threadIdx.x) * N;
    if (channel >= s.channels) return;
    const auto numbers = term.template start<N>(channel);
    const Offset first = (Offset)blockIdx.y * blockDim.y + threadIdx.y, apart = (Offset)gridDim.y * blockDim.y;
    if (first >= s.outer) return;
    each_read<N>(
        term, numbers, first * s.channels + channel, apart * s.channels, (s.outer - first + apart - 1) / apart, visit);
}

// What a term adds to two sums for each of N channels.
template <int N, class Term> struct Adding {
    const Term &term;
    real first[N], second[N];

    template <class Numbers, class Read>
    __device__ void operator()(const Numbers &numbers, const Read &read, Offset i) {
        term.template add<N>(numbers, read, i, first, second);
    }
};

template <int N, class Term> struct Applying {
    const Term &term;

    template <class Numbers, class Read>
    __device__ void operator()(const Numbers &numbers, const Read &read, Offset i) {
        term.template apply<N>(numbers, read, i);
    }
};

// Two sums per channel: what term.add<N>(numbers, read, i, first, second) adds for N elements from i on, read by
// term.read<N>(i). The result is partial[slab][2][channels].
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

// Calls visit(numbers, read, i) for the elements of the plane that starts at `start`, by a row of the block's threads.
template <class Term, class Numbers, class Visit>
__device__ inline void plane(
    const Extents &s, const Term &term, Offset start, const Numbers &numbers, Visit &visit) {
    const int first = threadIdx.x, apart = blockDim.x;
    if (first < s.inner)
        each_read<1>(term, numbers, start + first, apart, (s.inner - first + apart - 1) / apart, visit);
}

template <class Term>
__device__ inline void sums_of_planes(const Extents &s, real *partial, const Term &term) {
    const int channel = blockIdx.x;
    const auto numbers = term.template start<1>(channel);
    Adding<1, Term> sums = {term, {}, {}};
    for (Offset line = (Offset)blockIdx.y * blockDim.y + threadIdx.y; line < s.outer;
         line += (Offset)gridDim.y * blockDim.y)
        plane(s, term, (line * s.channels + channel) * s.inner, numbers, sums);
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

// Calls term.apply<N>(numbers, read, i) for all elements, read by term.read<N>(i).
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
            plane(s, term, p * s.inner, term.template start<1>((int)((unsigned)p % (unsigned)s.channels)), one);
    }
}

// Blocks that add up slabs: a column of threads per channel, which share its slabs.
constexpr int kColumns = 32, kShares = 16;

__device__ inline int settled_channel() { return blockIdx.x * kColumns + threadIdx.x; }

// The sums of this column's channel over all slabs. Returns true only in the column's first thread, which has them, and
// only if the channel exists.
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
