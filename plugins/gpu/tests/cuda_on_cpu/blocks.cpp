// Blocks of threads on a CPU. Threads run one after the other, each until its end or a barrier, where it keeps its
// stack and the next thread continues on another. A kernel without barriers is thus a plain loop. A warp continues
// until all of its threads have ended or wait for the whole block; then the next warp does. A device guarantees no
// order, but it may take this one, or the reverse.
//
// Stacks are entered once by makecontext, and left and re-entered by _setjmp and _longjmp, which make no system call,
// unlike swapcontext.
#include <algorithm>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
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
constexpr unsigned kWarp = 32;
enum State { kIdle, kRunning, kWaitsForWarp, kWaitsForBlock };

struct Fiber {
    ucontext_t context;
    jmp_buf at;
    char *stack = nullptr;  // never freed: the next block with as many threads reuses it
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
unsigned next_thread, last_thread, threads;
bool backward;

// The copies that a thread has requested and not waited for, in groups, of which the last is open.
struct Copy {
    void *to;
    const void *from;
    int bytes;
};
std::vector<std::vector<Copy>> asked[1024];

void carry_out(const Copy &copy) {
    if (copy.from)
        std::memcpy(copy.to, copy.from, copy.bytes);
    else
        std::memset(copy.to, 0, copy.bytes);
}

unsigned in_order(unsigned i, unsigned count) { return backward ? count - 1 - i : i; }

void be(unsigned thread) {
    threadIdx.x = thread % blockDim.x;
    threadIdx.y = thread / blockDim.x % blockDim.y;
    threadIdx.z = thread / blockDim.x / blockDim.y;
}

unsigned self() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }

void leave(State state) {
    Fiber *fiber = current;
    fiber->state = state;
    if (!_setjmp(fiber->at)) _longjmp(scheduler, 1);
}

void live() {
    for (;;) {
        while (next_thread < last_thread) {
            current->thread = in_order(next_thread++, threads);
            be(current->thread);
            asked[current->thread].clear();
            body(closure);
        }
        leave(kIdle);
    }
}

void enter(Fiber *fiber) {
    current = fiber;
    if (_setjmp(scheduler)) return;
    fiber->state = kRunning;
    if (fiber->started) {
        be(fiber->thread);
        _longjmp(fiber->at, 1);
    }
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

typedef std::vector<Fiber *> Warp;

bool all(const Warp &warp, State state) {
    return std::all_of(warp.begin(), warp.end(), [=](Fiber *fiber) { return fiber->state == state; });
}

// Runs waiting threads of a warp until each waits again or has ended; false if some did one and some the other.
bool go_on(Warp &warp) {
    const std::size_t size = warp.size();
    for (Fiber *fiber : warp) enter(fiber);
    warp.erase(std::remove_if(warp.begin(), warp.end(), [](Fiber *f) { return f->state == kIdle; }), warp.end());
    return warp.empty() || warp.size() == size;
}

// Continues threads at a barrier for their warp until all of the warp wait for the block or have ended; false if some
// of them do something else.
bool advance(Warp &warp) {
    while (!warp.empty() && !all(warp, kWaitsForBlock))
        if (!all(warp, kWaitsForWarp) || !go_on(warp)) return false;
    return true;
}

// Runs a block's threads from their beginnings, and then from barrier to barrier; false if some of them ended while
// others waited.
bool run_threads() {
    const unsigned count = (threads + kWarp - 1) / kWarp, of_last = threads - (count - 1) * kWarp;
    std::vector<Warp> warps(count);
    std::size_t started = 0;
    unsigned waiting = 0;
    next_thread = last_thread = 0;
    for (unsigned w = 0; w < count; ++w) {
        const unsigned size = in_order(w, count) == count - 1 ? of_last : kWarp;
        last_thread += size;
        while (next_thread < last_thread) {
            Fiber *fiber = idle(started);
            enter(fiber);
            if (fiber->state != kIdle) warps[w].push_back(fiber), ++started;
        }
        if (!warps[w].empty() && warps[w].size() != size) return false;
        if (!advance(warps[w])) return false;
        waiting += warps[w].size();
    }
    while (waiting) {
        if (waiting != threads) return false;
        waiting = 0;
        for (Warp &warp : warps) {
            if (!go_on(warp) || !advance(warp)) return false;
            waiting += warp.size();
        }
    }
    return true;
}

}  // namespace

extern "C" void cuda_on_cpu_barrier(int of_block) { leave(of_block ? kWaitsForBlock : kWaitsForWarp); }

extern "C" void cuda_on_cpu_copy(void *to, const void *from, int bytes) {
    const Copy copy = {to, from, bytes};
    if (!backward) return carry_out(copy);  // a device may do either: copy at once, or only when it is waited for
    auto &groups = asked[self()];
    if (groups.empty()) groups.emplace_back();
    groups.back().push_back(copy);
}

extern "C" void cuda_on_cpu_end_group() {
    auto &groups = asked[self()];
    if (groups.empty()) groups.emplace_back();
    groups.emplace_back();
}

// Waits for all groups but the last `count` that have ended.
extern "C" void cuda_on_cpu_wait(int count) {
    auto &groups = asked[self()];
    while ((int)groups.size() - 1 > count) {
        for (const Copy &copy : groups.front()) carry_out(copy);
        groups.erase(groups.begin());
    }
}

// Returns 0, or 1 if some threads of a block ended while others waited at a barrier.
extern "C" int cuda_on_cpu_run(
    void (*kernel)(void *), void *arguments, const unsigned *grid, const unsigned *block, int last_first) {
    body = kernel;
    closure = arguments;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    threads = block[0] * block[1] * block[2];
    backward = last_first;
    const unsigned long long blocks = 1ull * grid[0] * grid[1] * grid[2];
    for (unsigned long long i = 0; i < blocks; ++i) {
        const unsigned long long number = backward ? blocks - 1 - i : i;
        blockIdx = {(unsigned)(number % grid[0]), (unsigned)(number / grid[0] % grid[1]),
                    (unsigned)(number / grid[0] / grid[1])};
        if (run_threads()) continue;
        for (Fiber *fiber : fibers) fiber->state = kIdle, fiber->started = false;
        return 1;
    }
    return 0;
}
