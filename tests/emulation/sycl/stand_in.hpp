// A stand-in for SYCL's headers: what generated kernels use of them, for g++ or clang++, matrix
// engine included. metal/threadgroup.cpp runs what is compiled with it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <type_traits>

#define SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(...)
#define SYCL_EXTERNAL

// What one lane brings to an operation of its whole sub-group.
struct StandInCall {
    void (*run)(StandInCall* const* lanes);
    void* result;
    const void *a, *b, *c;
    void* memory;
    unsigned long stride;
    bool turned;
};
extern "C" void stand_in_barrier();
extern "C" void stand_in_together(StandInCall* call);
extern "C" unsigned stand_in_running();
// Made by the linker; weak, as a kernel may share nothing.
extern "C" __attribute__((weak)) char __start_threadgroup[], __stop_threadgroup[];

namespace sycl {

using half = _Float16;
constexpr unsigned LANES = STAND_IN_LANES;
static unsigned group_number, group_count;

template <class To, class From> To bit_cast(From value) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
    To out;
    __builtin_memcpy(&out, &value, sizeof out);
    return out;
}
inline float fabs(float a) { return __builtin_fabsf(a); }
inline float rint(float a) { return __builtin_rintf(a); }
inline float sqrt(float a) { return __builtin_sqrtf(a); }
inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

struct group {};
struct sub_group {
    unsigned get_local_linear_id() const { return stand_in_running() % LANES; }
    unsigned get_group_linear_id() const { return stand_in_running() / LANES; }
};
struct nd_item {
    unsigned get_local_linear_id() const { return stand_in_running(); }
    unsigned get_group_linear_id() const { return group_number; }
    unsigned get_group_range(int) const { return group_count; }
    group get_group() const { return {}; }
    sub_group get_sub_group() const { return {}; }
};
inline void group_barrier(group) { stand_in_barrier(); }

// Lane `stride` gives its value, or with `turned` the one whose number differs in those bits. No
// lane may be missing, nor ask for another: SYCL says nothing of what it would get then.
template <class T> void exchange(StandInCall* const* lanes) {
    for (unsigned lane = 0; lane < LANES; ++lane) {
        unsigned long from = lanes[lane]->turned ? lane ^ lanes[lane]->stride : lanes[lane]->stride;
        if (from >= LANES) __builtin_trap();
        *static_cast<T*>(lanes[lane]->result) = *static_cast<const T*>(lanes[from]->a);
    }
}
template <class T> T exchanged(T value, unsigned long lane, bool turned) {
    T out;
    StandInCall call = {exchange<T>, &out, &value, nullptr, nullptr, nullptr, lane, turned};
    stand_in_together(&call);
    return out;
}
template <class T> T group_broadcast(sub_group, T x, unsigned lane) { return exchanged(x, lane, false); }
template <class T> T permute_group_by_xor(sub_group, T x, unsigned mask) { return exchanged(x, mask, true); }

namespace access {
enum class address_space { local_space, global_space };
enum class decorated { no, yes };
}  // namespace access

// A pointer into another memory than it says is the end.
template <access::address_space Space, access::decorated, class T> T* address_space_cast(T* p) {
    const char* at = reinterpret_cast<const char*>(p);
    bool local = __start_threadgroup && at >= __start_threadgroup && at < __stop_threadgroup;
    if (local != (Space == access::address_space::local_space)) __builtin_trap();
    return p;
}

namespace ext::oneapi {

// A float's upper half.
struct bfloat16 {
    uint16_t bits;
    explicit operator float() const { return bit_cast<float>(uint32_t(bits) << 16); }
};

namespace this_work_item {
template <int> nd_item get_nd_item() { return {}; }
inline sub_group get_sub_group() { return {}; }
}  // namespace this_work_item

namespace experimental::matrix {

enum class use { a, b, accumulator };
enum class layout { row_major, col_major, dynamic };

template <class Group, class T, use U, size_t R, size_t C, layout L = layout::dynamic> struct joint_matrix {
    T held[(R * C + LANES - 1) / LANES];
    joint_matrix() { __builtin_memset(static_cast<void*>(held), 0x55, sizeof held); }
};

template <class T, size_t R, size_t C> struct Lanes {
    // f(row, column, lane, place in it) for all elements. Which lane holds one is nobody's business;
    // this order is no device's.
    template <class F> static void visit(F f) {
        for (size_t n = 0; n < R * C; ++n) {
            size_t element = R * C - 1 - n;
            f(element / C, element % C, n % LANES, n / LANES);
        }
    }
    static void gather(StandInCall* const* lanes, const void* StandInCall::*which, T* out) {
        visit([&](size_t r, size_t c, size_t lane, size_t n) {
            out[r * C + c] = static_cast<const T*>(lanes[lane]->*which)[n];
        });
    }
    static T* at(const StandInCall& call, size_t r, size_t c) {
        T* memory = static_cast<T*>(call.memory);
        return memory + (call.turned ? c * call.stride + r : r * call.stride + c);
    }
    static void load(StandInCall* const* lanes) {
        visit([&](size_t r, size_t c, size_t lane, size_t n) {
            static_cast<T*>(lanes[lane]->result)[n] = *at(*lanes[lane], r, c);
        });
    }
    static void store(StandInCall* const* lanes) {
        visit([&](size_t r, size_t c, size_t lane, size_t n) {
            *at(*lanes[lane], r, c) = static_cast<const T*>(lanes[lane]->a)[n];
        });
    }
};

// A sum of floats goes from the last product to the first: an order as good as any.
template <class S, class T, size_t M, size_t N, size_t K> void multiply(StandInCall* const* lanes) {
    T a[M * K], b[K * N];
    S c[M * N];
    Lanes<T, M, K>::gather(lanes, &StandInCall::a, a);
    Lanes<T, K, N>::gather(lanes, &StandInCall::b, b);
    Lanes<S, M, N>::gather(lanes, &StandInCall::c, c);
    Lanes<S, M, N>::visit([&](size_t r, size_t column, size_t lane, size_t n) {
        S sum = c[r * N + column];
        for (size_t k = K; k-- > 0;) sum += S(a[r * K + k]) * S(b[k * N + column]);
        static_cast<S*>(lanes[lane]->result)[n] = sum;
    });
}

// Intel's engine asks for four bytes, whatever the elements.
template <class T> void aligned(T* p) {
    if (reinterpret_cast<uintptr_t>(p) % 4) __builtin_trap();
}

template <class T, use U, size_t R, size_t C, layout L, class V>
void joint_matrix_fill(sub_group, joint_matrix<sub_group, T, U, R, C, L>& m, V value) {
    for (T& x : m.held) x = T(value);
}
template <class T, use U, size_t R, size_t C, layout L, class From>
void load(joint_matrix<sub_group, T, U, R, C, L>& m, From* p, size_t stride, layout order) {
    static_assert(std::is_same_v<std::remove_const_t<From>, T>, "the matrix is of another type");
    aligned(p);
    void* from = const_cast<T*>(p);
    StandInCall call = {Lanes<T, R, C>::load, m.held, nullptr, nullptr, nullptr, from, stride, order == layout::col_major};
    stand_in_together(&call);
}
template <class T, use U, size_t R, size_t C, layout L, class From>
void joint_matrix_load(sub_group, joint_matrix<sub_group, T, U, R, C, L>& m, From* p, size_t stride) {
    static_assert(U != use::accumulator && L != layout::dynamic, "an operand says its layout in its type");
    load(m, p, stride, L);
}
template <class T, size_t R, size_t C, class From>
void joint_matrix_load(sub_group, joint_matrix<sub_group, T, use::accumulator, R, C>& m, From* p, size_t stride, layout order) {
    load(m, p, stride, order);
}
template <class T, size_t R, size_t C>
void joint_matrix_store(sub_group, joint_matrix<sub_group, T, use::accumulator, R, C>& m, T* p, size_t stride, layout order) {
    aligned(p);
    StandInCall call = {Lanes<T, R, C>::store, nullptr, m.held, nullptr, nullptr, p, stride, order == layout::col_major};
    stand_in_together(&call);
}
template <class S, class T, size_t M, size_t N, size_t K, layout A, layout B>
void joint_matrix_mad(sub_group, joint_matrix<sub_group, S, use::accumulator, M, N>& d,
                      joint_matrix<sub_group, T, use::a, M, K, A>& a,
                      joint_matrix<sub_group, T, use::b, K, N, B>& b,
                      joint_matrix<sub_group, S, use::accumulator, M, N>& c) {
    StandInCall call = {multiply<S, T, M, N, K>, d.held, a.held, b.held, c.held, nullptr, 0, false};
    stand_in_together(&call);
}

}  // namespace experimental::matrix
}  // namespace ext::oneapi
}  // namespace sycl

// OpenCL's own: four products of signed bytes, added up.
inline int dot_4x8packed_ss_int(unsigned a, unsigned b) {
    int sum = 0;
    for (int n = 0; n < 4; ++n) sum += int(int8_t(a >> 8 * n)) * int(int8_t(b >> 8 * n));
    return sum;
}
