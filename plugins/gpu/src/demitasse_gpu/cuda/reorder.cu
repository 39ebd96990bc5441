// Moves values from one layout to another, and converts the stored type if it differs.
#include "numbers.cuh"

#ifndef FROM
#define FROM stored
#endif
#ifndef TO
#define TO stored
#endif
typedef FROM from_type;
typedef TO to_type;

template <class F, class T> struct Converted {
    static __device__ T of(F x) { return Narrow<T>::of(widened(x)); }
};
template <class T> struct Converted<T, T> {
    static __device__ T of(T x) { return x; }
};
#ifdef WHOLE_NUMBERS  // indices and masks, which have no widened form
template <> struct Converted<int, unsigned short> {
    static __device__ unsigned short of(int x) { return (unsigned short)x; }
};
template <> struct Converted<unsigned short, int> {
    static __device__ int of(unsigned short x) { return x; }
};
#endif

// The number of elements in 16 bytes of the wider type.
constexpr int kTogether = 16 / (sizeof(from_type) > sizeof(to_type) ? sizeof(from_type) : sizeof(to_type));

// The elements of an array, for one of several threads.
__device__ inline void converted(const from_type *x, to_type *y, Offset count, Offset thread, Offset threads) {
    const bool whole = is_aligned<kTogether>(x) && is_aligned<kTogether>(y);
    const Offset packed = whole ? count / kTogether * kTogether : 0;
    for (Offset i = thread * kTogether; i < packed; i += threads * kTogether) {
        const Pack<from_type, kTogether> a = read<kTogether>(x + i);
        Pack<to_type, kTogether> b;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) b.values[k] = Converted<from_type, to_type>::of(a.values[k]);
        *reinterpret_cast<Pack<to_type, kTogether> *>(y + i) = b;
    }
    for (Offset i = packed + thread; i < count; i += threads) y[i] = Converted<from_type, to_type>::of(x[i]);
}

extern "C" __global__ void convert(const from_type *x, to_type *y, Offset count) {
    converted(x, y, count, thread_of_grid(), threads_of_grid());
}

// The arrays that one launch converts, split into chunks, one per block. (A kernel takes 4 KiB of parameters.)
constexpr int kArrays = 128;
struct Arrays {
    const from_type *x[kArrays];
    to_type *y[kArrays];
    long long count[kArrays];
    int chunks[kArrays];  // of arrays up to and including this one
    int arrays, chunk;    // chunk: elements
};

extern "C" __global__ void convert_arrays(Arrays a) {
    int array = 0;
    for (int last = a.arrays - 1; array < last;) {
        const int middle = (array + last) / 2;
        if ((int)blockIdx.x < a.chunks[middle]) last = middle;
        else array = middle + 1;
    }
    const int before = array ? a.chunks[array - 1] : 0;
    const Offset start = (Offset)((int)blockIdx.x - before) * a.chunk;
    const Offset count = least_of((Offset)a.chunk, a.count[array] - start);
    converted(a.x[array] + start, a.y[array] + start, count, threadIdx.x, blockDim.x);
}

// Transposes matrices of rows x columns, one per blockIdx.z, in tiles of 32 x 32 that blocks of 32 x 8 threads hold in
// shared memory: both reads and writes are consecutive.
extern "C" __global__ void transpose(const from_type *x, to_type *y, int matrices, int rows, int columns) {
    __shared__ to_type tile[32][33];
    const int left = blockIdx.x * 32, top = blockIdx.y * 32;
    for (int matrix = blockIdx.z; matrix < matrices; matrix += gridDim.z) {
        const Offset base = (Offset)matrix * rows * columns;
        for (int k = threadIdx.y; k < 32; k += blockDim.y) {
            const int row = top + k, column = left + threadIdx.x;
            if (row < rows && column < columns)
                tile[k][threadIdx.x] =
                    Converted<from_type, to_type>::of(x[base + (Offset)row * columns + column]);
        }
        __syncthreads();
        for (int k = threadIdx.y; k < 32; k += blockDim.y) {
            const int row = left + k, column = top + threadIdx.x;
            if (row < columns && column < rows) y[base + (Offset)row * rows + column] = tile[threadIdx.x][k];
        }
        __syncthreads();
    }
}

struct Permutation {
    int rank;
    unsigned extents[8];
    long long steps[8];
};

// Any order of up to eight dimensions: the extents of y's dimensions and their distances in x, outermost first.
extern "C" __global__ void permute(const from_type *x, to_type *y, Permutation p, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        unsigned rest = (unsigned)i;
        Offset place = 0;
        // Unrolled, because an array indexed by a variable would be copied to local memory.
#pragma unroll
        for (int d = 7; d >= 0; --d) {
            if (d >= p.rank) continue;
            place += rest % p.extents[d] * p.steps[d];
            rest /= p.extents[d];
        }
        y[i] = Converted<from_type, to_type>::of(x[place]);
    }
}

// Copies rows of `width` elements, `x_step` and `y_step` apart.
__device__ inline void rows_copied(
    const from_type *x, to_type *y, Offset rows, Offset width, Offset x_step, Offset y_step) {
    const bool whole = width % kTogether == 0 && x_step % kTogether == 0 && y_step % kTogether == 0 &&
                       is_aligned<kTogether>(x) && is_aligned<kTogether>(y);
    if (!whole) {
        for (Offset i = thread_of_grid(); i < rows * width; i += threads_of_grid())
            y[i / width * y_step + i % width] = Converted<from_type, to_type>::of(x[i / width * x_step + i % width]);
        return;
    }
    const unsigned long long packs = width / kTogether;
    for (Offset i = thread_of_grid(); i < rows * (Offset)packs; i += threads_of_grid()) {
        // Divisions in 32 bits, where these suffice, take a quarter of the time of those in 64.
        const Offset row = rows * packs < 0xffffffffull ? (unsigned)i / (unsigned)packs : i / packs;
        const Offset within = (i - row * packs) * kTogether;
        const Pack<from_type, kTogether> a = read<kTogether>(x + row * x_step + within);
        Pack<to_type, kTogether> b;
#pragma unroll
        for (int k = 0; k < kTogether; ++k) b.values[k] = Converted<from_type, to_type>::of(a.values[k]);
        *reinterpret_cast<Pack<to_type, kTogether> *>(y + row * y_step + within) = b;
    }
}

// Pieces of an array that are joined or split, in rows: one piece per blockIdx.y.
constexpr int kPieces = 8;
struct Pieces {
    const from_type *x[kPieces];
    to_type *y[kPieces];
    long long width[kPieces], x_step[kPieces], y_step[kPieces];
};

extern "C" __global__ void copy_pieces(Pieces p, Offset rows) {
    // Unrolled, because an array indexed by a variable would be copied to local memory.
#pragma unroll
    for (int k = 0; k < kPieces; ++k)
        if (k == (int)blockIdx.y) rows_copied(p.x[k], p.y[k], rows, p.width[k], p.x_step[k], p.y_step[k]);
}

extern "C" __global__ void set_all(to_type *y, to_type value, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) y[i] = value;
}
