// Blocks of threads on a CPU: threads run one after the other, each until its end or a barrier, where it
// keeps its stack and the next one goes on with another. So a kernel without barriers is a plain loop.
//
// Stacks are entered once by makecontext and left and re-entered by _setjmp and _longjmp, which make no
// system call, as swapcontext does.
#include <csetjmp>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

struct uint3 {
    unsigned int x, y, z;
};
uint3 threadIdx, blockIdx, blockDim, gridDim;
extern "C" {
unsigned char cuda_on_cpu_lanes[1024][8];
}

namespace {

constexpr int kStack = 1 << 16;
enum State { kIdle, kRunning, kWaiting };

struct Fiber {
    ucontext_t context;
    jmp_buf at;
    char *stack = nullptr;  // never given back: the next block of as many threads has it
    State state = kIdle;
    unsigned thread = 0;
    bool started = false;
};

std::vector<Fiber *> fibers;
Fiber *current;
jmp_buf scheduler;
ucontext_t caller;
void (*body)(void *);
void *closure;
unsigned next_thread, threads;

void be(unsigned thread) {
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / blockDim.x / blockDim.y;
}

void leave(Fiber *fiber, State state) {
    fiber->state = state;
    if (!_setjmp(fiber->at)) _longjmp(scheduler, 1);
}

void live() {
    for (;;) {
        Fiber *self = current;
        while (next_thread < threads) {
            self->thread = next_thread++;
            be(self->thread);
            body(closure);
        }
        leave(self, kIdle);
    }
}

void enter(Fiber *fiber) {
    current = fiber;
    if (_setjmp(scheduler)) return;
    fiber->state = kRunning;
    if (fiber->started) _longjmp(fiber->at, 1);
    fiber->started = true;
    if (!fiber->stack) fiber->stack = static_cast<char *>(std::malloc(kStack));
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = kStack;
    fiber->context.uc_link = &caller;
    makecontext(&fiber->context, live, 0);
    setcontext(&fiber->context);
}

Fiber *idle(std::size_t from) {
    for (; from < fibers.size(); ++from)
        if (fibers[from]->state == kIdle) return fibers[from];
    fibers.push_back(new Fiber);
    return fibers.back();
}

// 0, or 1 where some threads of the block ended while others waited at a barrier.
int run_block() {
    next_thread = 0;
    std::size_t started = 0;
    while (next_thread < threads) {
        Fiber *fiber = idle(started);
        enter(fiber);
        if (fiber->state == kWaiting) ++started;
    }
    std::vector<Fiber *> waiting;
    for (Fiber *fiber : fibers)
        if (fiber->state == kWaiting) waiting.push_back(fiber);
    while (!waiting.empty()) {
        if (waiting.size() != threads) {
            for (Fiber *fiber : waiting) fiber->state = kIdle, fiber->started = false;
            return 1;
        }
        std::vector<Fiber *> still;
        for (Fiber *fiber : waiting) {
            be(fiber->thread);
            enter(fiber);
            if (fiber->state == kWaiting) still.push_back(fiber);
        }
        waiting.swap(still);
    }
    return 0;
}

}  // namespace

extern "C" void cuda_on_cpu_barrier() { leave(current, kWaiting); }

extern "C" int cuda_on_cpu_run(
    void (*kernel)(void *), void *arguments, const unsigned *grid, const unsigned *block) {
    body = kernel;
    closure = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    threads = block[0] * block[1] * block[2];
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
                if (int wrong = run_block()) return wrong;
    return 0;
}
