// What the libraries leave to be done around their products: biases, ReLU, and bfloat16. ELEMENT is float, double or
// bf16; SUM is the type of arithmetic.
#include "numbers.cuh"

struct bf16 {
    unsigned short bits;
};

__device__ inline float read(const float x) { return x; }
__device__ inline double read(const double x) { return x; }
__device__ inline float read(const bf16 x) {
    union {
        unsigned int bits;
        float value;
    } both;
    both.bits = (unsigned int)x.bits << 16;
    return both.value;
}
__device__ inline void write(float *to, float x) { *to = x; }
__device__ inline void write(double *to, double x) { *to = x; }
__device__ inline void write(bf16 *to, float x) {
    union {
        float value;
        unsigned int bits;
    } both;
    both.value = x;
    // To the nearest, ties to even; NaN stays NaN.
    unsigned int nearest = (both.bits + 0x7FFF + (both.bits >> 16 & 1)) >> 16;
    to->bits = x != x ? 0x7FC0 : (unsigned short)nearest;
}

// y = y + b (unless b is null), then a ReLU if requested. y is (rows / inner, columns, inner).
extern "C" __global__ void add_bias(ELEMENT *y, const ELEMENT *b, long long rows, int columns, int inner, int relu) {
    long long step = (long long)gridDim.x * blockDim.x, count = rows * columns;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        SUM value = read(y[i]);
        if (b) value += read(b[i / inner % columns]);
        write(y + i, relu && !(value > 0) ? (value != value ? value : (SUM)0) : value);
    }
}

// to = from, converted to SUM.
extern "C" __global__ void widen(const ELEMENT *from, SUM *to, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) to[i] = read(from[i]);
}

// N elements of images with `from` channels, which may be more or fewer: zeros for missing ones.
template <int N> __device__ inline void fit(const ELEMENT *x, ELEMENT *y, long long points, int from) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < points; i += step) {
        Pack<ELEMENT, N> point = {};
#pragma unroll
        for (int c = 0; c < N; ++c)
            if (c < from) point.values[c] = x[i * from + c];
        reinterpret_cast<Pack<ELEMENT, N> *>(y)[i] = point;
    }
}

// Points with `from` channels as points with `to`: the first ones, or with zeros added.
extern "C" __global__ void fit_channels(const ELEMENT *x, ELEMENT *y, long long points, int from, int to) {
    if (to == 4) return fit<4>(x, y, points, from);
    if (to == 8) return fit<8>(x, y, points, from);
    long long step = (long long)gridDim.x * blockDim.x, count = points * to;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const int c = (int)(i % to);
        y[i] = c < from ? x[i / to * from + c] : ELEMENT{};
    }
}

// How squares of points become the channels of one point. The images have `rows` of `row` elements, are padded by `top`
// rows and `left` elements, and their squares have `side` strips of `strip` elements. The result has `lines` of
// `places`, each with `packs` of 16 bytes.
struct Squares {
    Divisor rows, row, side, strip, lines, places, packs;
    int top, left;
};

constexpr int kPack = 16 / sizeof(ELEMENT);

// y(n, i, j) = the strips of square (i, j) of image n, one after the other, with zeros outside the image, and behind
// them.
extern "C" __global__ void gather_points(const ELEMENT *x, ELEMENT *y, Squares squares, unsigned packs) {
    const int rows = squares.rows.by, row = squares.row.by, side = squares.side.by, strip = squares.strip.by;
    const unsigned step = gridDim.x * blockDim.x;
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < packs; at += step) {
        unsigned image = at;
        unsigned element = divided(image, squares.packs) * kPack;
        const int j = divided(image, squares.places), i = divided(image, squares.lines);
        int within = divided(element, squares.strip);
        const int first = i * side - squares.top, end = least_of(rows, first + side);
        int line = first + (int)element, column = j * strip - squares.left + within;
        const ELEMENT *from = x + ((long long)image * rows + line) * row + column;
        Pack<ELEMENT, kPack> pack = {};
#pragma unroll
        for (int k = 0; k < kPack; ++k) {
            if (line >= 0 && line < end && (unsigned)column < (unsigned)row) pack.values[k] = *from;
            ++from, ++column, ++within;
            if (within == strip) within = 0, ++line, column -= strip, from += row - strip;
        }
        reinterpret_cast<Pack<ELEMENT, kPack> *>(y)[at] = pack;
    }
}

// The reverse, without padding: y is the images, x has the strips of their squares.
extern "C" __global__ void split_channels(const ELEMENT *x, ELEMENT *y, Squares squares, unsigned count) {
    const unsigned step = gridDim.x * blockDim.x;
    for (unsigned at = blockIdx.x * blockDim.x + threadIdx.x; at < count; at += step) {
        unsigned image = at;
        unsigned j = divided(image, squares.row), i = divided(image, squares.rows);
        const unsigned within = divided(j, squares.strip), strip = divided(i, squares.side);
        const long long point = ((long long)image * squares.lines.by + i) * squares.places.by + j;
        y[at] = x[point * squares.packs.by * kPack + strip * squares.strip.by + within];
    }
}
