// Batch normalisation by a batch's or by running statistics, and scales of channels, with their gradients.
#include "channels.cuh"

// What a batch normalisation does to N channels: y = (x - centre) * slope + level.
template <int N> struct Affine {
    real centre[N], slope[N], level[N], inverse[N];
};

// The statistics of channels: average and inverse deviation; or, if `kept`, running sums of averages and variances, and
// what they are divided by. Without any: 0 and 1.
struct Statistics {
    const real *mean, *spread, *factor;
    real epsilon;
    int kept;
};

template <int N>
__device__ inline Affine<N> affine(const Statistics &given, const real *w, const real *b, int channel) {
    Affine<N> result;
    // As long as nothing was summed, the sums are 0.
    const real share = !given.kept ? 1 : *given.factor != 0 ? 1 / *given.factor : 0;
#pragma unroll
    for (int k = 0; k < N; ++k) {
        const real spread = given.mean ? given.spread[channel + k] : 1;
        result.centre[k] = given.mean ? share * given.mean[channel + k] : 0;
        result.inverse[k] = given.kept ? 1 / root(share * spread + given.epsilon) : spread;
        result.slope[k] = w ? w[channel + k] * result.inverse[k] : result.inverse[k];
        result.level[k] = b ? b[channel + k] : 0;
    }
    return result;
}

template <int N> __device__ inline real applied(const Affine<N> &a, int k, real x) {
    return (x - a.centre[k]) * a.slope[k] + a.level[k];
}

// The batch's moments about the first element of each channel, so that little precision is lost if the mean is far from
// 0.
struct Moments {
    const stored *x;
    int inner;

    template <int N> struct Numbers {
        real shift[N];
    };
    template <int N> __device__ Numbers<N> start(int channel) const {
        Numbers<N> numbers;
        for (int k = 0; k < N; ++k) numbers.shift[k] = (real)widened(x[(Offset)(channel + k) * inner]);
        return numbers;
    }
    template <int N> __device__ One<N> read(Offset i) const { return {::read<N>(x + i)}; }
    template <int N>
    __device__ void add(
        const Numbers<N> &numbers, const One<N> &read, Offset, real (&first)[N], real (&second)[N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real away = (real)widened(read.a.values[k]) - numbers.shift[k];
            first[k] += away;
            second[k] += away * away;
        }
    }
};

// The sums of dz * (x - centre) and of dz, where dz is dy, but 0 where a ReLU returned 0.
struct Gradients {
    const stored *dy, *x;
    Statistics given;
    const real *w, *b;
    int rectified;

    template <int N> __device__ Affine<N> start(int channel) const {
        return affine<N>(given, w, b, channel);
    }
    template <int N> __device__ Two<N> read(Offset i) const { return {::read<N>(x + i), ::read<N>(dy + i)}; }
    template <int N>
    __device__ void add(
        const Affine<N> &numbers, const Two<N> &read, Offset, real (&first)[N], real (&second)[N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real a = (real)widened(read.a.values[k]), slope = (real)widened(read.b.values[k]);
            const real dz = !rectified || applied(numbers, k, a) > 0 ? slope : 0;
            first[k] += dz * (a - numbers.centre[k]);
            second[k] += dz;
        }
    }
};

// The same for a dy that is made here: the sum of two terms, and 0 where a ReLU behind the normalisation returned 0.
struct MadeGradients {
    Gradients of_made;
    const stored *one, *other, *mask;
    stored *made;

    template <int N> __device__ Affine<N> start(int channel) const { return of_made.start<N>(channel); }
    template <int N> __device__ Four<N> read(Offset i) const {
        return {::read<N>(of_made.x + i), ::read<N>(one + i), ::read<N>(other + i), ::read<N>(mask + i)};
    }
    template <int N>
    __device__ void add(
        const Affine<N> &numbers, const Four<N> &read, Offset i, real (&first)[N], real (&second)[N]) const {
        Pack<stored, N> dy;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real total = (real)widened(read.b.values[k]) + (real)widened(read.c.values[k]);
            dy.values[k] = Narrow<stored>::of((real)widened(read.d.values[k]) > 0 ? total : (real)0);
        }
        *reinterpret_cast<Pack<stored, N> *>(made + i) = dy;
        of_made.add<N>(numbers, Two<N>{read.a, dy}, i, first, second);
    }
};

// The sums of dy * x and of dy.
struct Products {
    const stored *dy, *x;

    template <int N> __device__ int start(int) const { return 0; }
    template <int N> __device__ Two<N> read(Offset i) const {
        const Pack<stored, N> slope = ::read<N>(dy + i);
        return {x ? ::read<N>(x + i) : slope, slope};
    }
    template <int N>
    __device__ void add(int, const Two<N> &read, Offset, real (&first)[N], real (&second)[N]) const {
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real slope = (real)widened(read.b.values[k]);
            if (x) first[k] += slope * (real)widened(read.a.values[k]);
            second[k] += slope;
        }
    }
};

// The sums of a ReLU's gradient, which is made here.
struct Rectified {
    const stored *dy, *y;
    stored *made;
    real slope;

    template <int N> __device__ int start(int) const { return 0; }
    template <int N> __device__ Two<N> read(Offset i) const { return {::read<N>(dy + i), ::read<N>(y + i)}; }
    template <int N>
    __device__ void add(int, const Two<N> &read, Offset i, real (&)[N], real (&second)[N]) const {
        Pack<stored, N> pack;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real whole = (real)widened(read.a.values[k]);
            pack.values[k] = Narrow<stored>::of((real)widened(read.b.values[k]) > 0 ? whole : slope * whole);
            second[k] += (real)widened(pack.values[k]);
        }
        *reinterpret_cast<Pack<stored, N> *>(made + i) = pack;
    }
};

extern "C" __global__ __launch_bounds__(kThreads, kResident) void moments(Extents s, const stored *x, real *partial) {
    sums(s, partial, Moments{x, s.inner});
}

extern "C" __global__ __launch_bounds__(kThreads, kResident) void gradient_sums(
    Extents s, Statistics given, const stored *dy, const stored *x, const real *w, const real *b,
    int rectified, real *partial) {
    sums(s, partial, Gradients{dy, x, given, w, b, rectified});
}

extern "C" __global__ __launch_bounds__(kThreads, kResident) void made_gradient_sums(
    Extents s, Statistics given, const stored *one, const stored *other, const stored *mask, stored *made,
    const stored *x, const real *w, const real *b, int rectified, real *partial) {
    sums(s, partial, MadeGradients{{made, x, given, w, b, rectified}, one, other, mask, made});
}

extern "C" __global__ __launch_bounds__(kThreads, kResident) void rectified_sums(
    Extents s, const stored *dy, const stored *y, stored *made, real slope, real *partial) {
    sums(s, partial, Rectified{dy, y, made, slope});
}

extern "C" __global__ __launch_bounds__(kThreads, kResident) void product_sums(Extents s, const stored *dy, const stored *x, real *partial) {
    sums(s, partial, Products{dy, x});
}

// Updates a channel's running statistics by the average and variance of n numbers. If they are sums, `factor` is what
// they are divided by; if there is none, they are moving averages.
__device__ inline void keep_statistics(
    int channel, double n, double middle, double spread, real keep, real *mean, real *variance, real *factor) {
    if (factor) {
        mean[channel] = keep * mean[channel] + (real)middle;
        variance[channel] = keep * variance[channel] + (real)(n > 1 ? spread * (n / (n - 1)) : spread);
        if (channel == 0) *factor = keep * *factor + 1;
    } else {
        mean[channel] = keep * mean[channel] + (1 - keep) * (real)middle;
        variance[channel] = keep * variance[channel] + (1 - keep) * (real)spread;
    }
}

// Turns moments into the batch's statistics, which also update the running ones.
extern "C" __global__ void settle(
    Extents s, const stored *x, const real *partial, int slabs, real keep, real epsilon, real *mean,
    real *variance, real *factor, real *average, real *inverse) {
    double first, second;
    if (!channel_sums(partial, slabs, s.channels, first, second)) return;
    const int channel = settled_channel();
    const double n = (double)s.outer * s.inner, away = first / n;
    const double spread = largest_of(second / n - away * away, 0.0);
    const double middle = (double)widened(x[(Offset)channel * s.inner]) + away;
    average[channel] = (real)middle;
    inverse[channel] = (real)(1 / sqrt(spread + (double)epsilon));
    keep_statistics(channel, n, middle, spread, keep, mean, variance, factor);
}

// Turns moments into the sums of numbers as they are, as the shifts of workers that share a batch differ: those of x,
// of x * x, and how many there are.
extern "C" __global__ void settle_sums(
    Extents s, const stored *x, const real *partial, int slabs, double *moments) {
    double first, second;
    if (!channel_sums(partial, slabs, s.channels, first, second)) return;
    const int channel = settled_channel();
    const double n = (double)s.outer * s.inner, shift = (double)widened(x[(Offset)channel * s.inner]);
    moments[channel] = first + n * shift;
    moments[s.channels + channel] = second + shift * (2 * first + n * shift);
    if (channel == 0) moments[2 * s.channels] = n;
}

// Turns such sums of a whole batch into its statistics. The result is made from the variance (`affine`) and its gradient
// from the inverse deviation, so that is computed from the variance as it is stored: a ReLU is open in both or in none.
extern "C" __global__ void settle_whole(
    int channels, const double *moments, real keep, real epsilon, real *mean, real *variance, real *factor,
    real *average, real *spread, real *inverse) {
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const double n = moments[2 * channels], middle = moments[channel] / n;
    const double found = moments[channels + channel] / n - middle * middle, positive = found < 0 ? 0 : found;
    average[channel] = (real)middle;
    spread[channel] = (real)positive;
    inverse[channel] = 1 / root((real)positive + epsilon);
    keep_statistics(channel, n, middle, positive, keep, mean, variance, factor);
}

// The mean over a whole batch of each of the sums that its gradient needs, dw and db.
extern "C" __global__ void share_sums(int count, const double *sums, const double *moments, real *means) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) means[i] = (real)(sums[i] / moments[count]);
}

// Turns sums into dw (times the inverse deviation if there are statistics) and db.
extern "C" __global__ void settle_gradients(
    Extents s, Statistics given, const real *partial, int slabs, real *dw, real *db) {
    double first, second;
    if (!channel_sums(partial, slabs, s.channels, first, second)) return;
    const int channel = settled_channel();
    if (given.mean) first *= (double)affine<1>(given, 0, 0, channel).inverse[0];
    if (dw) dw[channel] = (real)first;
    if (db) db[channel] = (real)second;
}

struct Normalise {
    Statistics given;
    const real *w, *b;
    const stored *x, *other;
    stored *y;
    int rectified, sum_rectified;

    template <int N> __device__ Affine<N> start(int channel) const {
        return affine<N>(given, w, b, channel);
    }
    template <int N> __device__ Two<N> read(Offset i) const {
        const Pack<stored, N> a = ::read<N>(x + i);
        return {a, other ? ::read<N>(other + i) : a};
    }
    template <int N> __device__ void apply(const Affine<N> &numbers, const Two<N> &read, Offset i) const {
        real a[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            a[k] = applied(numbers, k, (real)widened(read.a.values[k]));
            if (rectified) a[k] = a[k] < 0 ? 0 : a[k];
            if (other) a[k] += (real)widened(read.b.values[k]);
            if (sum_rectified) a[k] = a[k] < 0 ? 0 : a[k];
        }
        store<N>(y + i, a);
    }
};

extern "C" __global__ __launch_bounds__(kThreads, 3) void normalise(
    Extents s, Statistics given, const stored *x, const real *w, const real *b, stored *y, int rectified,
    const stored *other, int sum_rectified) {
    everywhere(s, Normalise{given, w, b, x, other, y, rectified, sum_rectified});
}

template <int N> struct Back {
    Affine<N> forward;
    real offset[N], tilt[N];
};

// dx = slope * (dz - db / n - xhat * dw / n); without the sums (share = 0) for running statistics.
struct NormaliseBackward {
    Statistics given;
    const real *w, *b, *dw, *db;
    const stored *dy, *x;
    stored *dx;
    int rectified;
    real share;

    template <int N> __device__ Back<N> start(int channel) const {
        Back<N> numbers = {affine<N>(given, w, b, channel), {}, {}};
#pragma unroll
        for (int k = 0; k < N; ++k) {
            numbers.offset[k] = share != 0 ? db[channel + k] * share : 0;
            numbers.tilt[k] = share != 0 ? dw[channel + k] * share * numbers.forward.inverse[k] : 0;
        }
        return numbers;
    }
    template <int N> __device__ Two<N> read(Offset i) const { return {::read<N>(x + i), ::read<N>(dy + i)}; }
    template <int N> __device__ void apply(const Back<N> &numbers, const Two<N> &read, Offset i) const {
        real slopes[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const real a = (real)widened(read.a.values[k]), slope = (real)widened(read.b.values[k]);
            const real dz = !rectified || applied(numbers.forward, k, a) > 0 ? slope : 0;
            const real centred = a - numbers.forward.centre[k];
            slopes[k] = numbers.forward.slope[k] * (dz - numbers.offset[k] - centred * numbers.tilt[k]);
        }
        store<N>(dx + i, slopes);
    }
};

extern "C" __global__ __launch_bounds__(kThreads, 3) void normalise_backward(
    Extents s, Statistics given, const stored *dy, const stored *x, const real *w, const real *b,
    const real *dw, const real *db, stored *dx, int rectified, real share) {
    everywhere(s, NormaliseBackward{given, w, b, dw, db, dy, x, dx, rectified, share});
}

// y = x * w + b per channel.
struct Scale {
    const real *w, *b;
    const stored *x;
    stored *y;
    int rectified;

    template <int N> struct Numbers {
        real slope[N], level[N];
    };
    template <int N> __device__ Numbers<N> start(int channel) const {
        Numbers<N> numbers;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            numbers.slope[k] = w[channel + k];
            numbers.level[k] = b ? b[channel + k] : 0;
        }
        return numbers;
    }
    template <int N> __device__ One<N> read(Offset i) const { return {::read<N>(x + i)}; }
    template <int N> __device__ void apply(const Numbers<N> &numbers, const One<N> &read, Offset i) const {
        real a[N];
#pragma unroll
        for (int k = 0; k < N; ++k) {
            a[k] = (real)widened(read.a.values[k]) * numbers.slope[k] + numbers.level[k];
            if (rectified) a[k] = a[k] < 0 ? 0 : a[k];
        }
        store<N>(y + i, a);
    }
};

extern "C" __global__ void scale(
    Extents s, const stored *x, const real *w, const real *b, stored *y, int rectified) {
    everywhere(s, Scale{w, b, x, y, rectified});
}

// Merges the weights of a product and those of the normalisation (or scale) behind it, made = w * slope, and their
// biases.
struct Fold {
    Statistics given;
    const real *slope;
    const stored *w;
    stored *made;

    template <int N> __device__ Affine<N> start(int channel) const {
        return affine<N>(given, slope, nullptr, channel);
    }
    template <int N> __device__ One<N> read(Offset i) const { return {::read<N>(w + i)}; }
    template <int N> __device__ void apply(const Affine<N> &numbers, const One<N> &read, Offset i) const {
        real a[N];
#pragma unroll
        for (int k = 0; k < N; ++k) a[k] = (real)widened(read.a.values[k]) * numbers.slope[k];
        store<N>(made + i, a);
    }
};

extern "C" __global__ void fold(
    Extents s, Statistics given, const real *slope, const stored *w, stored *made) {
    everywhere(s, Fold{given, slope, w, made});
}

extern "C" __global__ void fold_bias(
    int channels, Statistics given, const real *slope, const real *level, const real *b, real *made) {
    const int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const Affine<1> numbers = affine<1>(given, slope, level, channel);
    made[channel] = applied(numbers, 0, b ? b[channel] : 0);
}
