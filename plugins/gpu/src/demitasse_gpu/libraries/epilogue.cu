// What the libraries leave to do around their products: biases, ReLU, and bfloat16.
// ELEMENT is float, double or bf16, and SUM what is computed in.

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
    // To the nearest, of two equally near ones the even; what is no number stays none.
    unsigned int nearest = (both.bits + 0x7FFF + (both.bits >> 16 & 1)) >> 16;
    to->bits = x != x ? 0x7FC0 : (unsigned short)nearest;
}

// y = y + b (nothing where b is null), then ReLU where it is asked for. y is (rows / inner, columns, inner).
extern "C" __global__ void add_bias(ELEMENT *y, const ELEMENT *b, long long rows, int columns, int inner, int relu) {
    long long step = (long long)gridDim.x * blockDim.x, count = rows * columns;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        SUM value = read(y[i]);
        if (b) value += read(b[i / inner % columns]);
        write(y + i, relu && !(value > 0) ? (value != value ? value : (SUM)0) : value);
    }
}

// to = from, as SUM.
extern "C" __global__ void widen(const ELEMENT *from, SUM *to, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) to[i] = read(from[i]);
}

// N elements of images of `from` channels, which are more, fewer or as many: zeros where there are none.
template <int N> struct alignas(N * sizeof(ELEMENT) > 16 ? 16 : N * sizeof(ELEMENT)) Point {
    ELEMENT values[N];
};

template <int N> __device__ inline void fit(const ELEMENT *x, ELEMENT *y, long long points, int from) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < points; i += step) {
        Point<N> point = {};
#pragma unroll
        for (int c = 0; c < N; ++c)
            if (c < from) point.values[c] = x[i * from + c];
        reinterpret_cast<Point<N> *>(y)[i] = point;
    }
}

// Points of `from` channels as points of `to`: the first of them, or zeros behind them.
extern "C" __global__ void fit_channels(const ELEMENT *x, ELEMENT *y, long long points, int from, int to) {
    if (to == 4) return fit<4>(x, y, points, from);
    if (to == 8) return fit<8>(x, y, points, from);
    long long step = (long long)gridDim.x * blockDim.x, count = points * to;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        const int c = (int)(i % to);
        y[i] = c < from ? x[i / to * from + c] : ELEMENT{};
    }
}
