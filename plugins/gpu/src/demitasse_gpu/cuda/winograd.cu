// The transformations for 3 x 3 convolutions by Winograd's minimal filtering, F(4 x 4, 3 x 3): 4 x 4 results of a
// channel take 36 products instead of 144, y = A' [(G w G') * (B' x B)] A. The gradients of filters are the same
// reversed, dw = G' [(A dy A') * (B' x B)] G (Lavin and Gray 2015, section 4).
//
// For images with channels innermost, tiles of 4 x 4 results follow each other, each with 36 positions of all channels.
// Positions are thus the groups of a 1 x 1 convolution, which the kernels of implicit_gemm_tiles.cuh compute.
#include "numbers.cuh"

// Two neighbouring channels.
struct alignas(8) Two {
    float x, y;
};
__device__ inline Two operator+(Two a, Two b) { return {a.x + b.x, a.y + b.y}; }
__device__ inline Two operator-(Two a, Two b) { return {a.x - b.x, a.y - b.y}; }
__device__ inline Two operator*(float a, Two b) { return {a * b.x, a * b.y}; }

// Polynomials are evaluated at zero, infinity, plus and minus kNear, and plus and minus kFar; at points further apart,
// errors are larger. The division by the differences is part of the filters' transformation.
constexpr float kNear = 0.70710678118654752f, kFar = 1.41421356237309505f;
constexpr float kOfNear = -2.0f / 3.0f, kOfFar = 1.0f / 6.0f;

// B' of six consecutive points.
struct OfImages {
    static constexpr int kFrom = 6, kTo = 6;
    template <class T> static __device__ void line(const T (&x)[6], T (&y)[6]) {
        const T even[] = {x[4] - 2.0f * x[2], x[4] - 0.5f * x[2]}, odd[] = {x[3] - 2.0f * x[1], x[3] - 0.5f * x[1]};
        y[0] = x[0] - 2.5f * x[2] + x[4];
        y[1] = even[0] + kNear * odd[0];
        y[2] = even[0] - kNear * odd[0];
        y[3] = even[1] + kFar * odd[1];
        y[4] = even[1] - kFar * odd[1];
        y[5] = x[1] - 2.5f * x[3] + x[5];
    }
};
// A' of six consecutive products: four results.
struct OfProducts {
    static constexpr int kFrom = 6, kTo = 4;
    template <class T> static __device__ void line(const T (&x)[6], T (&y)[4]) {
        const T sums[] = {x[1] + x[2], x[3] + x[4]}, rest[] = {kNear * (x[1] - x[2]), kFar * (x[3] - x[4])};
        y[0] = x[0] + (sums[0] + sums[1]);
        y[1] = rest[0] + rest[1];
        y[2] = 0.5f * sums[0] + 2.0f * sums[1];
        y[3] = 0.5f * rest[0] + 2.0f * rest[1] + x[5];
    }
};
// A of the gradients of four consecutive results.
struct OfGradients {
    static constexpr int kFrom = 4, kTo = 6;
    template <class T> static __device__ void line(const T (&x)[4], T (&y)[6]) {
        const T even[] = {x[0] + 0.5f * x[2], x[0] + 2.0f * x[2]};
        const T odd[] = {kNear * (x[1] + 0.5f * x[3]), kFar * (x[1] + 2.0f * x[3])};
        y[0] = x[0];
        y[1] = even[0] + odd[0];
        y[2] = even[0] - odd[0];
        y[3] = even[1] + odd[1];
        y[4] = even[1] - odd[1];
        y[5] = x[3];
    }
};
// G of three consecutive taps.
struct OfFilters {
    static constexpr int kFrom = 3, kTo = 6;
    template <class T> static __device__ void line(const T (&x)[3], T (&y)[6]) {
        const T even[] = {kOfNear * (x[0] + 0.5f * x[2]), kOfFar * (x[0] + 2.0f * x[2])};
        const T odd[] = {kOfNear * kNear * x[1], kOfFar * kFar * x[1]};
        y[0] = x[0];
        y[1] = even[0] + odd[0];
        y[2] = even[0] - odd[0];
        y[3] = even[1] + odd[1];
        y[4] = even[1] - odd[1];
        y[5] = x[2];
    }
};
// G' of six consecutive sums: the gradients of three taps.
struct ToFilters {
    static constexpr int kFrom = 6, kTo = 3;
    template <class T> static __device__ void line(const T (&x)[6], T (&y)[3]) {
        const T sums[] = {kOfNear * (x[1] + x[2]), kOfFar * (x[3] + x[4])};
        y[0] = x[0] + (sums[0] + sums[1]);
        y[1] = kOfNear * kNear * (x[1] - x[2]) + kOfFar * kFar * (x[3] - x[4]);
        y[2] = 0.5f * sums[0] + 2.0f * sums[1] + x[5];
    }
};

// Transforms a square, given by `read(row, column)`, first down its columns, then along its rows, and passes the result
// to `write(row, column, value)`.
template <class Of, class T, class Read, class Write>
__device__ inline void transformed(const Read &read, const Write &write) {
    T half[Of::kTo][Of::kFrom];
#pragma unroll
    for (int column = 0; column < Of::kFrom; ++column) {
        T x[Of::kFrom], y[Of::kTo];
#pragma unroll
        for (int row = 0; row < Of::kFrom; ++row) x[row] = read(row, column);
        Of::line(x, y);
#pragma unroll
        for (int row = 0; row < Of::kTo; ++row) half[row][column] = y[row];
    }
#pragma unroll
    for (int row = 0; row < Of::kTo; ++row) {
        T y[Of::kTo];
        Of::line(half[row], y);
#pragma unroll
        for (int column = 0; column < Of::kTo; ++column) write(row, column, y[column]);
    }
}

// The tiles of images from the `first` on, and `count`, the number of pairs of their channels. The tile at (i, j)
// begins at 4 i - pad_h and 4 j - pad_w.
struct Tiles {
    int height, width, pairs, pad_h, pad_w;
    unsigned first, count;
    Divisor by_pairs, by_across, by_down;
};

// A thread's tile: the place of its pair of channels in the 36 positions, and its first point in the image.
struct Tile {
    Offset at, sample;
    int row, column, pair;
    __device__ Tile(const Tiles &t, unsigned i) {
        pair = divided(i, t.by_pairs);
        at = (Offset)i * 36 * t.pairs + pair;
        unsigned tile = t.first + i;
        column = (int)divided(tile, t.by_across) * 4 - t.pad_w;
        row = (int)divided(tile, t.by_down) * 4 - t.pad_h;
        sample = tile;
    }
    __device__ bool inside(const Tiles &t, int down, int across) const {
        return (unsigned)(row + down) < (unsigned)t.height && (unsigned)(column + across) < (unsigned)t.width;
    }
    __device__ Offset point(const Tiles &t, int down, int across) const {
        return ((sample * t.height + row + down) * t.width + column + across) * t.pairs + pair;
    }
};

template <class Of> __device__ inline void tiles_transformed(const Tiles &t, const Two *x, Two *y) {
    for (unsigned i = (unsigned)thread_of_grid(); i < t.count; i += (unsigned)threads_of_grid()) {
        const Tile tile(t, i);
        transformed<Of, Two>(
            [&](int row, int column) {
                const Two none = {};
                return tile.inside(t, row, column) ? x[tile.point(t, row, column)] : none;
            },
            [&](int row, int column, Two value) { y[tile.at + (row * 6 + column) * t.pairs] = value; });
    }
}

extern "C" __global__ void images_to_positions(Tiles t, const Two *x, Two *v) { tiles_transformed<OfImages>(t, x, v); }
extern "C" __global__ void gradients_to_positions(Tiles t, const Two *dy, Two *m) {
    tiles_transformed<OfGradients>(t, dy, m);
}

// Adds a bias, and sets negative results to 0 if `rectified`.
extern "C" __global__ void positions_to_results(Tiles t, const Two *m, const Two *bias, Two *y, int rectified) {
    for (unsigned i = (unsigned)thread_of_grid(); i < t.count; i += (unsigned)threads_of_grid()) {
        const Tile tile(t, i);
        Two level = {};
        if (bias) level = bias[tile.pair];
        transformed<OfProducts, Two>(
            [&](int row, int column) { return m[tile.at + (row * 6 + column) * t.pairs]; },
            [&](int row, int column, Two value) {
                if (!tile.inside(t, row, column)) return;
                value = value + level;
                if (rectified) value = {value.x < 0 ? 0 : value.x, value.y < 0 ? 0 : value.y};
                y[tile.point(t, row, column)] = value;
            });
    }
}

// Filters (outputs, 3, 3, channels) as (36, rows, columns). Rows are outputs and columns are channels; if `turned`, for
// the gradient of images, they are swapped and the last tap comes first.
extern "C" __global__ void filters_to_positions(const float *w, float *u, int turned, int rows, int columns) {
    const unsigned count = (unsigned)rows * columns;
    for (unsigned i = (unsigned)thread_of_grid(); i < count; i += (unsigned)threads_of_grid()) {
        const unsigned row = i / columns, column = i % columns;
        transformed<OfFilters, float>(
            [&](int down, int across) {
                const int tap = down * 3 + across;
                return turned ? w[((Offset)column * 9 + 8 - tap) * rows + row] : w[((Offset)row * 9 + tap) * columns + column];
            },
            [&](int down, int across, float value) { u[(Offset)(down * 6 + across) * count + i] = value; });
    }
}

// The gradients of filters (outputs, 3, 3, channels) from sums of products (parts, 36, outputs, channels).
extern "C" __global__ void positions_to_filters(const float *sums, float *dw, int parts, int outputs, int channels) {
    const unsigned count = (unsigned)outputs * channels;
    for (unsigned i = (unsigned)thread_of_grid(); i < count; i += (unsigned)threads_of_grid()) {
        const unsigned output = i / channels, channel = i % channels;
        transformed<ToFilters, float>(
            [&](int down, int across) {
                const float *from = sums + (Offset)(down * 6 + across) * count + i;
                float sum = from[0];
                for (int part = 1; part < parts; ++part) sum += from[(Offset)part * 36 * count];
                return sum;
            },
            [&](int down, int across, float value) {
                dw[((Offset)output * 9 + down * 3 + across) * channels + channel] = value;
            });
    }
}
