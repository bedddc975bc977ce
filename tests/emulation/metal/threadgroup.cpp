// Runs one kernel on the CPU: each invocation is a fiber that stops at barriers and where its
// simdgroup, of STAND_IN_LANES, does something together. Every access to memory is watched: races
// between invocations with no barrier between them and between threadgroups, reads of what nobody
// wrote, accesses outside a buffer. The kernel's text is compiled with -fsanitize=thread and linked
// with these hooks instead of that sanitizer's library. A trap is what -fsanitize=undefined makes of
// arithmetic and addresses that C++ gives no meaning.
//
// Standard input, for each launch until it ends: int32 threadgroups, simdgroups, order, buffers; for
// each buffer int64 bytes, int32 its kind, and int32 bytes of text: its name, a colon, and the file
// that holds a constant one; the contents of those that are given here. Standard output: a dot and
// the contents of those that may be written, afterwards. Exit status 3 and a line on standard error
// when the kernel errs.
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <random>
#include <string>
#include <fcntl.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

struct StandInCall {
    void (*run)(StandInCall* const* lanes);
    void* result;
    const void *a, *b, *c;
    void* memory;
    unsigned long stride;
    bool turned;
};
extern "C" void stand_in_kernel(void* const* buffers, unsigned thread, unsigned simdgroup,
                                unsigned group, unsigned groups);
// Made by the linker; weak, as a kernel may share nothing.
extern "C" __attribute__((weak)) char __start_threadgroup[], __stop_threadgroup[];

namespace {

constexpr int LANES = STAND_IN_LANES, STRANGER = 1 << 20, PAD = 256;
constexpr size_t STACK = 128 << 10;
constexpr unsigned char GARBAGE = 0x55;

// What a kernel may do with a buffer: nothing is watched of one that nobody writes but its bounds.
enum class Kind : int32_t { defined, undefined, constant, file };

enum class State { ready, barrier, together, done };

struct Fiber {
    ucontext_t context;  // where it begins
    jmp_buf at;          // where it stopped: unlike a context's, such a switch asks no kernel
    bool begun;
    State state;
    StandInCall* call;
};

// Of one byte: who touched it since the last barrier, which threadgroups did, who defined it.
struct Touch {
    int epoch = -1, low = 0, high = 0;
    int group_low = 1 << 30, group_high = -1;
    int defined = 0;  // number of the threadgroup, counted from 1; -1 from outside
    bool dirty = false, group_dirty = false;
};

struct Region {
    std::string name;
    char* at;
    size_t size;
    bool shared, mapped;
    std::vector<Touch> touches;  // none of a constant
};

std::vector<Region> regions;
std::vector<void*> buffers;
std::vector<Fiber> fibers;
std::vector<int> order;
jmp_buf scheduler;
char* arena;
size_t arena_size;
int groups, group, running, owner, strangers, epoch;
std::mt19937 generator;

[[noreturn]] void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    _exit(3);
}

const char* who(int number, char (&text)[40]) {
    snprintf(text, sizeof text, number >= STRANGER ? "a simdgroup" : "invocation %d", number);
    return text;
}

void touch(Region& region, size_t place, bool write) {
    if (region.touches.empty()) {
        if (write) fail("%s is constant and written at byte %zu", region.name.c_str(), place);
        return;
    }
    Touch& t = region.touches[place];
    if (!write && !(t.defined == -1 || t.defined == group + 1))
        fail("%s is read at byte %zu where nothing was written", region.name.c_str(), place);
    if (t.epoch != epoch) t.epoch = epoch, t.low = t.high = owner, t.dirty = false;
    t.low = std::min(t.low, owner), t.high = std::max(t.high, owner), t.dirty |= write;
    if (t.dirty && t.low != t.high) {
        char one[40], two[40];
        fail("race on %s at byte %zu: %s and %s meet with no barrier", region.name.c_str(), place,
             who(t.low, one), who(t.high, two));
    }
    if (write && t.defined != -1) t.defined = group + 1;
    if (region.shared) return;
    t.group_low = std::min(t.group_low, group), t.group_high = std::max(t.group_high, group);
    t.group_dirty |= write;
    if (t.group_dirty && t.group_low != t.group_high)
        fail("race on %s at byte %zu: threadgroups %d and %d meet", region.name.c_str(), place,
             t.group_low, t.group_high);
}

void watch(const void* address, size_t size, bool write) {
    const char* p = static_cast<const char*>(address);
    for (Region& region : regions) {
        if (p < region.at || p + size > region.at + region.size) continue;
        for (size_t n = 0; n < size; ++n) touch(region, p - region.at + n, write);
        return;
    }
    if (p >= arena && p < arena + arena_size)
        fail("%s outside every buffer, %td bytes into all of them", write ? "a write" : "a read",
             p - arena);
}

void stop(State why) {
    fibers[running].state = why;
    if (_setjmp(fibers[running].at) == 0) _longjmp(scheduler, 1);
    owner = running;
}

// Runs a fiber until it stops.
__attribute__((noinline)) void enter(Fiber& fiber) {
    if (_setjmp(scheduler) != 0) return;
    if (fiber.begun) _longjmp(fiber.at, 1);
    fiber.begun = true;
    setcontext(&fiber.context);
}

void start() {
    stand_in_kernel(buffers.data(), running, running / LANES, group, groups);
    stop(State::done);
}

void prepare(Fiber& fiber, char* stack) {
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = stack;
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, start, 0);
    fiber.state = State::ready;
    fiber.begun = false;
}

bool all(State state) {
    return std::all_of(fibers.begin(), fibers.end(), [=](Fiber& f) { return f.state == state; });
}

void round(int how) {
    if (how > 1) std::shuffle(order.begin(), order.end(), generator);
    for (int n : order) {
        if (fibers[n].state != State::ready) continue;
        running = owner = n;
        enter(fibers[n]);
    }
}

void run_group(int how, char* stacks) {
    for (size_t n = 0; n < fibers.size(); ++n) prepare(fibers[n], stacks + n * STACK);
    if (__start_threadgroup) memset(__start_threadgroup, GARBAGE, __stop_threadgroup - __start_threadgroup);
    ++epoch;
    while (!all(State::done)) {
        if (all(State::barrier)) {
            ++epoch;
            for (Fiber& f : fibers) f.state = State::ready;
        }
        if (std::none_of(fibers.begin(), fibers.end(), [](Fiber& f) { return f.state == State::ready; }))
            fail("divergence: some invocations wait at a barrier or for their simdgroup in vain");
        round(how);
    }
}

template <class T> T take() {
    T value;
    if (fread(&value, sizeof value, 1, stdin) != 1) fail("the input ends early");
    return value;
}

char* mapped(const char* path, size_t size) {
    int file = open(path, O_RDONLY);
    void* at = file < 0 ? MAP_FAILED : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    if (at == MAP_FAILED) fail("%s cannot be read", path);
    return static_cast<char*>(at);
}

struct Given {
    size_t size;
    Kind kind;
    std::string name, path;
};

Given take_given() {
    Given out{size_t(take<int64_t>()), take<Kind>(), std::string(take<int32_t>(), ' '), ""};
    if (fread(&out.name[0], out.name.size(), 1, stdin) != 1) fail("the input ends early");
    size_t colon = out.name.find(':');
    out.path = out.name.substr(colon + 1);
    out.name.resize(colon);
    return out;
}

size_t padded(size_t size) { return (size + 63) / 64 * 64; }

void take_buffers(int count) {
    std::vector<Given> given;
    arena_size = PAD;
    for (int n = 0; n < count; ++n) {
        given.push_back(take_given());
        if (given[n].kind != Kind::file) arena_size += padded(given[n].size) + PAD;
    }
    arena = static_cast<char*>(aligned_alloc(64, padded(arena_size)));
    memset(arena, GARBAGE, arena_size);
    char* at = arena + PAD;
    for (const Given& g : given) {
        bool file = g.kind == Kind::file, watched = g.kind == Kind::defined || g.kind == Kind::undefined;
        char* place = file ? mapped(g.path.c_str(), g.size) : at;
        if (!file) {
            if (g.size && fread(at, g.size, 1, stdin) != 1) fail("the input ends early");
            at += padded(g.size) + PAD;
        }
        regions.push_back({g.name, place, g.size, false, file, std::vector<Touch>(watched ? g.size : 0)});
        for (Touch& t : regions.back().touches) t.defined = g.kind == Kind::undefined ? 0 : -1;
        buffers.push_back(place);
    }
    if (__start_threadgroup) {
        size_t size = __stop_threadgroup - __start_threadgroup;
        regions.push_back(
            {"threadgroup memory", __start_threadgroup, size, true, false, std::vector<Touch>(size)});
    }
}

void give_back_buffers() {
    for (Region& region : regions)
        if (region.mapped) munmap(region.at, region.size);
    free(arena);
    regions.clear(), buffers.clear();
}

// Kept from launch to launch: to clear them anew takes longer than many a kernel.
char* stacks_of(int invocations) {
    static char* stacks = nullptr;
    static int made = 0;
    if (invocations <= made) return stacks;
    if (made) munmap(stacks, made * STACK);
    void* at = mmap(nullptr, invocations * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) fail("no memory for %d fibers", invocations);
    made = invocations;
    return stacks = static_cast<char*>(at);
}

void launch(int invocations, int how, int count) {
    take_buffers(count);
    fibers.resize(invocations), order.clear();
    for (int n = 0; n < invocations; ++n) order.push_back(how == 1 ? invocations - 1 - n : n);
    generator.seed(how);
    strangers = 0;
    char* stacks = stacks_of(invocations);
    for (group = 0; group < groups; ++group) run_group(how, stacks);
    fputc('.', stdout);
    for (int n = 0; n < count; ++n) fwrite(regions[n].at, 1, regions[n].touches.size(), stdout);
    fflush(stdout);
    give_back_buffers();
}

}  // namespace

extern "C" void stand_in_barrier() { stop(State::barrier); }
extern "C" unsigned stand_in_running() { return running; }

// The last lane to come does it for all.
extern "C" void stand_in_together(StandInCall* call) {
    int first = running / LANES * LANES;
    StandInCall* lanes[LANES];
    fibers[running].call = call;
    for (int n = 0; n < LANES; ++n) {
        Fiber& fiber = fibers[first + n];
        if (first + n != running && fiber.state != State::together) return stop(State::together);
        lanes[n] = fiber.call;
        if (lanes[n]->run != lanes[0]->run || lanes[n]->memory != lanes[0]->memory ||
            lanes[n]->stride != lanes[0]->stride || lanes[n]->turned != lanes[0]->turned)
            fail("divergence: the lanes of a simdgroup do not do the same together");
    }
    owner = STRANGER + strangers++;
    call->run(lanes);
    owner = running;
    for (int n = 0; n < LANES; ++n) fibers[first + n].state = State::ready;
}

#define HOOK(size)                                                                     \
    extern "C" void __tsan_read##size(void* p) { watch(p, size, false); }              \
    extern "C" void __tsan_write##size(void* p) { watch(p, size, true); }              \
    extern "C" void __tsan_unaligned_read##size(void* p) { watch(p, size, false); }    \
    extern "C" void __tsan_unaligned_write##size(void* p) { watch(p, size, true); }
HOOK(1) HOOK(2) HOOK(4) HOOK(8) HOOK(16)
extern "C" void __tsan_read_range(void* p, long size) { watch(p, size, false); }
extern "C" void __tsan_write_range(void* p, long size) { watch(p, size, true); }
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

void trapped(int) { fail("invocation %d does what C++ gives no meaning", running); }

int main() {
    signal(SIGILL, trapped), signal(SIGTRAP, trapped);
    while (fread(&groups, sizeof groups, 1, stdin) == 1) {
        int invocations = take<int32_t>() * LANES, how = take<int32_t>();
        launch(invocations, how, take<int32_t>());
    }
    return 0;
}
