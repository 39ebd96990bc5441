// Solver updates of a slice of flat memory, in one pass, and the sums of squares that some need first. A slice is split
// into segments, one per parameter, and these into chunks, one per block.
#include "reductions.cuh"

constexpr int kSegments = 64;

struct Segments {
    int count, chunk, first, padding;  // chunk: elements; first: the number of the first segment here
    long long start[kSegments], stop[kSegments];
    double rate[kSegments], decay[kSegments];  // multipliers
    int chunks[kSegments];                     // of segments up to and including this one
};

struct Chunk {
    int segment;
    long long start, stop;
};

__device__ inline Chunk chunk_of(const Segments &s) {
    int segment = 0;
    while (segment < s.count - 1 && (int)blockIdx.x >= s.chunks[segment]) ++segment;
    const int before = segment ? s.chunks[segment - 1] : 0;
    const long long start = s.start[segment] + (long long)(blockIdx.x - before) * s.chunk;
    return {segment, start, least_of(start + s.chunk, s.stop[segment])};
}

// The arguments of all solvers; `second` for solvers that keep one.
struct Slice {
    real *parameter;
    const real *gradient;
    real *history, *second;
    const double *rate, *scale;
    double decay;
    int lasso;  // L1 decay, by the sign
};

template <class Rule> struct Updated {
    const Slice &given;
    real step, scale, decay;
    Rule rule;

    template <int N> __device__ void at(long long i) const {
        real parameter[N], slope[N], history[N], second[N];
        load<N>(given.parameter + i, parameter);
        load<N>(given.gradient + i, slope);
        load<N>(given.history + i, history);
        if (given.second) load<N>(given.second + i, second);
#pragma unroll
        for (int k = 0; k < N; ++k) {
            if (!given.second) second[k] = 0;
            const real pull = given.lasso ? (real)((parameter[k] > 0) - (parameter[k] < 0)) : parameter[k];
            rule(parameter[k], scale * slope[k] + decay * pull, history[k], second[k], step);
        }
        store<N>(given.parameter + i, parameter);
        store<N>(given.history + i, history);
        if (given.second) store<N>(given.second + i, second);
    }
};

// Calls rule(parameter, slope, history, second, step) for each element. slope is the gradient, scaled and with the
// decay added; step is the learning rate times factor(segment).
template <class Factor, class Rule>
__device__ inline void update(const Segments &s, const Slice &given, Factor factor, Rule rule) {
    constexpr int N = 16 / sizeof(real);
    if (*given.rate < 0) return;  // a loss that is not finite made it so: nothing may change
    __shared__ real step;
    const Chunk chunk = chunk_of(s);
    if (threadIdx.x == 0) step = (real)(*given.rate * s.rate[chunk.segment] * factor(chunk.segment));
    __syncthreads();
    const real scale = given.scale ? (real)*given.scale : (real)1;
    const Updated<Rule> some = {given, step, scale, (real)(given.decay * s.decay[chunk.segment]), rule};
    const bool whole = is_aligned<N>(given.parameter + chunk.start) && is_aligned<N>(given.gradient + chunk.start) &&
                       is_aligned<N>(given.history + chunk.start) &&
                       (!given.second || is_aligned<N>(given.second + chunk.start));
    const long long packed = whole ? chunk.start + (chunk.stop - chunk.start) / N * N : chunk.start;
    for (long long i = chunk.start + threadIdx.x * N; i < packed; i += blockDim.x * N) some.template at<N>(i);
    for (long long i = packed + threadIdx.x; i < chunk.stop; i += blockDim.x) some.template at<1>(i);
}

struct One {
    __device__ double operator()(int) const { return 1; }
};

extern "C" __global__ void momentum_update(Segments s, Slice given, real momentum) {
    update(s, given, One(), [&](real &parameter, real slope, real &history, real &, real step) {
        history = momentum * history + step * slope;
        parameter -= history;
    });
}

extern "C" __global__ void nesterov_update(Segments s, Slice given, real momentum) {
    update(s, given, One(), [&](real &parameter, real slope, real &history, real &, real step) {
        const real before = history;
        history = momentum * before + step * slope;
        parameter -= (1 + momentum) * history - momentum * before;
    });
}

extern "C" __global__ void adagrad_update(Segments s, Slice given, real delta) {
    update(s, given, One(), [&](real &parameter, real slope, real &history, real &, real step) {
        history += slope * slope;
        parameter -= step * slope / (root(history) + delta);
    });
}

// new_share is 1 - rms_decay, computed by the host in double.
extern "C" __global__ void rmsprop_update(Segments s, Slice given, real rms_decay, real new_share, real delta) {
    update(s, given, One(), [&](real &parameter, real slope, real &history, real &, real step) {
        history = rms_decay * history + new_share * slope * slope;
        parameter -= step * slope / (root(history) + delta);
    });
}

extern "C" __global__ void adadelta_update(Segments s, Slice given, real momentum, real new_share, real delta) {
    update(s, given, One(), [&](real &parameter, real slope, real &history, real &second, real step) {
        history = momentum * history + new_share * slope * slope;
        const real change = slope * root((second + delta) / (history + delta));
        second = momentum * second + new_share * change * change;
        parameter -= step * change;
    });
}

extern "C" __global__ void adam_update(
    Segments s, Slice given, const unsigned long long *iteration, double momentum, double momentum2,
    real delta) {
    const real m = (real)momentum, m2 = (real)momentum2, n = (real)(1 - momentum), n2 = (real)(1 - momentum2);
    update(
        s, given,
        [&](int) {
            const double count = (double)*iteration + 1;
            return sqrt(1 - pow(momentum2, count)) / (1 - pow(momentum, count));
        },
        [&](real &parameter, real slope, real &history, real &second, real step) {
            history = m * history + n * slope;
            second = m2 * second + n2 * slope * slope;
            parameter -= step * history / (root(second) + delta);
        });
}

extern "C" __global__ void lars_update(
    Segments s, Slice given, const double *squares, real momentum, double trust) {
    update(
        s, given,
        [&](int segment) {
            const double length = sqrt(squares[2 * (s.first + segment)]);
            const double steepness = sqrt(squares[2 * (s.first + segment) + 1]) * (given.scale ? *given.scale : 1);
            if (s.decay[segment] == 0 || !(length > 0) || !(steepness > 0)) return 1.0;
            return trust * length / (steepness + given.decay * s.decay[segment] * length);
        },
        [&](real &parameter, real slope, real &history, real &, real step) {
            history = momentum * history + step * slope;
            parameter -= history;
        });
}

extern "C" __global__ void larc_update(
    Segments s, Slice given, const double *squares, real momentum, double trust, real clip) {
    update(
        s, given,
        [&](int segment) {
            const double rate = *given.rate, multiplier = s.rate[segment];
            if (!(rate > 0) || !(multiplier > 0)) return 0.0;
            const double length = sqrt(squares[2 * (s.first + segment)]);
            const double steepness = sqrt(squares[2 * (s.first + segment) + 1]) * (given.scale ? *given.scale : 1);
            const double local = length > 0 && steepness > 0 ? trust * length / steepness : 1.0;
            return (clip != (real)0 ? (rate < local ? rate : local) / rate : local) / multiplier;
        },
        [&](real &parameter, real slope, real &history, real &, real step) {
            history = momentum * history + step * slope;
            parameter -= history;
        });
}

// The sums of squares of each chunk of two arrays, in double: partial[chunk][2].
extern "C" __global__ void chunk_squares(
    Segments s, const real *parameter, const real *gradient, double *partial) {
    const Chunk chunk = chunk_of(s);
    double first = 0, second = 0;
    for (long long i = chunk.start + threadIdx.x; i < chunk.stop; i += blockDim.x) {
        first += (double)parameter[i] * parameter[i];
        second += (double)gradient[i] * gradient[i];
    }
    first = block_sum(first);
    second = block_sum(second);
    if (threadIdx.x == 0) {
        partial[2 * (long long)blockIdx.x] = first;
        partial[2 * (long long)blockIdx.x + 1] = second;
    }
}

// Those of each segment, one block per segment.
extern "C" __global__ void segment_squares(Segments s, const double *partial, double *total) {
    const int segment = blockIdx.x;
    double first = 0, second = 0;
    for (int i = (segment ? s.chunks[segment - 1] : 0) + threadIdx.x; i < s.chunks[segment]; i += blockDim.x) {
        first += partial[2 * (long long)i];
        second += partial[2 * (long long)i + 1];
    }
    first = block_sum(first);
    second = block_sum(second);
    if (threadIdx.x == 0) {
        total[2 * (s.first + segment)] = first;
        total[2 * (s.first + segment) + 1] = second;
    }
}
