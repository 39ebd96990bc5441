// What arrays in device memory do themselves: fill, and add.

extern "C" __global__ void fill(unsigned char *target, unsigned long long bits, int width, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        if (width == 8)
            ((unsigned long long *)target)[i] = bits;
        else if (width == 4)
            ((unsigned int *)target)[i] = (unsigned int)bits;
        else if (width == 2)
            ((unsigned short *)target)[i] = (unsigned short)bits;
        else
            target[i] = (unsigned char)bits;
    }
}

extern "C" __global__ void add_float32(float *total, const float *x, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) total[i] += x[i];
}

extern "C" __global__ void add_float64(double *total, const double *x, long long count) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) total[i] += x[i];
}

// Adds up a step's loss in float64: the weighted sums of the losses' values, one after the other. One thread.
extern "C" __global__ void add_loss_float32(double *total, const float *loss, long long count, double weight, int first) {
    double sum = 0;
    for (long long i = 0; i < count; i++) sum += loss[i];
    *total = (first ? 0 : *total) + weight * sum;
}

extern "C" __global__ void add_loss_float64(double *total, const double *loss, long long count, double weight, int first) {
    double sum = 0;
    for (long long i = 0; i < count; i++) sum += loss[i];
    *total = (first ? 0 : *total) + weight * sum;
}

// A loss that is not finite makes the rate negative, which tells the updates to change nothing.
extern "C" __global__ void guard_rate(const double *total, double *rate) {
    if (!(*total - *total == 0)) *rate = -1;
}
