// Sums over trailing axes, the standardisation of rows, learned slopes of channels, and the largest elements of rows. A
// row is `length` consecutive elements, and has a block of its own.
#include "channels.cuh"

enum Term { kPlain, kAbsolute, kSquare };

__device__ inline real term_of(real a, int term) {
    return term == kPlain ? a : term == kAbsolute ? (a < 0 ? -a : a) : a * a;
}

extern "C" __global__ void row_totals(const stored *x, stored *y, Offset length, int term, real coefficient) {
    const stored *row = x + (Offset)blockIdx.x * length;
    real sum = 0;
    for (Offset i = threadIdx.x; i < length; i += blockDim.x) sum += term_of((real)widened(row[i]), term);
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = Narrow<stored>::of(coefficient * sum);
}

// dx = coefficient * the row's dy, times 1, the sign of x, or 2 x.
extern "C" __global__ void row_totals_backward(
    const stored *dy, const stored *x, stored *dx, Offset length, int term, real coefficient, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const real slope = coefficient * (real)widened(dy[i / length]);
        const real a = term == kPlain ? 1 : (real)widened(x[i]);
        const real factor = term == kAbsolute ? (real)((a > 0) - (a < 0)) : term == kSquare ? 2 * a : 1;
        dx[i] = Narrow<stored>::of(slope * factor);
    }
}

__device__ inline real row_mean(const stored *row, Offset length) {
    real sum = 0;
    for (Offset i = threadIdx.x; i < length; i += blockDim.x) sum += (real)widened(row[i]);
    return block_sum(sum) / (real)length;
}

extern "C" __global__ void centre(const stored *x, stored *y, Offset length) {
    const Offset start = (Offset)blockIdx.x * length;
    const real mean = row_mean(x + start, length);
    for (Offset i = threadIdx.x; i < length; i += blockDim.x)
        y[start + i] = Narrow<stored>::of((real)widened(x[start + i]) - mean);
}

extern "C" __global__ void standardize(
    const stored *x, stored *y, stored *deviation, Offset length, real epsilon) {
    const Offset start = (Offset)blockIdx.x * length;
    const real mean = row_mean(x + start, length);
    real squares = 0;
    for (Offset i = threadIdx.x; i < length; i += blockDim.x) {
        const real away = (real)widened(x[start + i]) - mean;
        squares += away * away;
    }
    const real spread = root(block_sum(squares) / (real)length);
    for (Offset i = threadIdx.x; i < length; i += blockDim.x)
        y[start + i] = Narrow<stored>::of(((real)widened(x[start + i]) - mean) / (spread + epsilon));
    if (deviation && threadIdx.x == 0) deviation[blockIdx.x] = Narrow<stored>::of(spread);
}

extern "C" __global__ void standardize_backward(
    const stored *dy, const stored *y, const stored *deviation, stored *dx, Offset length, real epsilon) {
    const Offset start = (Offset)blockIdx.x * length;
    const real mean = row_mean(dy + start, length), spread = (real)widened(deviation[blockIdx.x]);
    real product = 0;
    for (Offset i = threadIdx.x; i < length; i += blockDim.x)
        product += (real)widened(dy[start + i]) * (real)widened(y[start + i]);
    product = block_sum(product) / (real)length;
    // A constant row has no direction in which its deviation would change.
    const real tilt = spread > 0 ? product / spread : 0;
    for (Offset i = threadIdx.x; i < length; i += blockDim.x) {
        const real slope = ((real)widened(dy[start + i]) - mean) / (spread + epsilon);
        dx[start + i] = Narrow<stored>::of(slope - (real)widened(y[start + i]) * tilt);
    }
}

template <int N> struct Slopes {
    real values[N];
};

// y = x where x > 0, else w * x. With dy as the multiplied number, this is the gradient.
struct Sloped {
    const stored *x, *dy;
    const real *w;
    stored *y;

    template <int N> __device__ Slopes<N> start(int channel) const {
        Slopes<N> slopes;
#pragma unroll
        for (int k = 0; k < N; ++k) slopes.values[k] = w[channel + k];
        return slopes;
    }
    template <int N> __device__ Two<N> read(Offset i) const { return {::read<N>(x + i), ::read<N>(dy + i)}; }
    template <int N> __device__ void apply(const Slopes<N> &slopes, const Two<N> &read, Offset i) const {
        real made[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real slope = (real)widened(read.b.values[k]);
            made[k] = (real)widened(read.a.values[k]) > 0 ? slope : slopes.values[k] * slope;
        }
        store<N>(y + i, made);
    }
    // The sum of dy * x where x is not above 0.
    template <int N>
    __device__ void add(const Slopes<N> &, const Two<N> &read, Offset, real (&first)[N], real (&)[N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real a = (real)widened(read.a.values[k]);
            first[k] += a > 0 ? 0 : a * (real)widened(read.b.values[k]);
        }
    }
};

extern "C" __global__ void sloped(Extents s, const stored *x, const stored *dy, const real *w, stored *y) {
    everywhere(s, Sloped{x, dy, w, y});
}

extern "C" __global__ __launch_bounds__(kThreads, kResident) void sloped_sums(
    Extents s, const stored *x, const stored *dy, const real *w, real *partial) {
    sums(s, partial, Sloped{x, dy, w, 0});
}

extern "C" __global__ void settle_slopes(Extents s, const real *partial, int slabs, real *dw) {
    double first, second;
    if (channel_sums(partial, slabs, s.channels, first, second)) dw[settled_channel()] = (real)first;
}

// The `wanted` largest of each row of `classes` that are `inner` apart, in descending order, the last of equals first;
// one thread per row. `gives`: 1 for indices, 2 for values, 3 for both, indices before values.
extern "C" __global__ void largest(
    const stored *x, stored *y, int classes, int inner, int wanted, int gives, Offset rows) {
    for (Offset row = thread_of_grid(); row < rows; row += threads_of_grid()) {
        const stored *from = x + row / inner * classes * inner + row % inner;
        stored *to = y + row / inner * wanted * (gives == 3 ? 2 : 1) * inner + row % inner;
        int before = -1;
        real bound = 0;
        for (int k = 0; k < wanted; ++k) {
            int best = -1;
            real most = 0;
            for (int c = 0; c < classes; ++c) {
                const real a = (real)widened(from[(Offset)c * inner]);
                if (before >= 0 && !(a < bound || (a == bound && c < before))) continue;
                if (best < 0 || a >= most) best = c, most = a;
            }
            before = best, bound = most;
            if (gives & 1) to[(Offset)k * inner] = Narrow<stored>::of((real)best);
            if (gives & 2) to[((Offset)k + (gives == 3 ? wanted : 0)) * inner] = Narrow<stored>::of(most);
        }
    }
}
