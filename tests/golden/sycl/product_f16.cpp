// product for SYCL, f16*f16->f32 8x16x16, 4 subgroups of 16.
// sha256 of what follows: b0855db44e935f7a
#include <sycl/builtins.hpp>
#include <sycl/ext/oneapi/free_function_kernel_properties.hpp>
#include <sycl/ext/oneapi/free_function_queries.hpp>
#include <sycl/ext/oneapi/work_group_static.hpp>
#include <sycl/group_algorithm.hpp>
#include <sycl/group_barrier.hpp>
#if SPECCC_JOINT_MATRIX
#include <sycl/ext/oneapi/matrix/matrix.hpp>
#endif

// Each product and each sum is rounded by itself: no compiler may fuse or reorder them.
#pragma clang fp contract(off) reassociate(off)
namespace syclex = sycl::ext::oneapi;
namespace syclexp = sycl::ext::oneapi::experimental;
using half = sycl::half;
using uint = uint32_t;

#if SPECCC_JOINT_MATRIX
#define PER_LANE const
#else
// Intel's CPU driver (2026.2) loses what differs by lane and is computed once for both sides of a
// barrier; a volatile is read anew on each side.
#define PER_LANE const volatile
#endif
#define ROLLED _Pragma("clang loop unroll(disable)")
constexpr int INVOCATIONS = 64;
constexpr int SUBGROUPS = 4;
constexpr int M = 8, N = 16, K = 16;
constexpr int SUBGROUP = 16;

// a * b + c, rounded once.
inline float fma_ir(float a, float b, float c) { return sycl::fma(a, b, c); }

// The smaller and the larger; of a NaN and a number, the NaN.
template <class T> T min_ir(T a, T b) { return a <= b || a != a ? a : b; }
template <class T> T max_ir(T a, T b) { return a >= b || a != a ? a : b; }

// The sum of the products of four pairs of signed bytes.
#if SPECCC_JOINT_MATRIX
// OpenCL's own: one instruction of a Xe GPU, whose compiler does not see it in shifts and products.
SYCL_EXTERNAL extern int dot_4x8packed_ss_int(uint a, uint b);
inline int dot4_ir(int a, int b) { return dot_4x8packed_ss_int(uint(a), uint(b)); }
#else
inline int dot4_ir(int a, int b) {
    int sum = 0;
    for (int bit = 0; bit < 32; bit += 8) sum += int(int8_t(a >> bit)) * int(int8_t(b >> bit));
    return sum;
}
#endif

// A number out of bytes at a multiple of ALIGN; the host and the device are little-endian.
template <class T, int ALIGN, class Byte> T bytes_at(const Byte* p, int at) {
    T value;
    __builtin_memcpy(&value, __builtin_assume_aligned(p + at, ALIGN), sizeof(T));
    return value;
}

// Of numbers that are not negative: that a sign might be there takes many steps.
inline int div_ir(int a, int b) { return int(uint(a) / uint(b)); }
inline int mod_ir(int a, int b) { return int(uint(a) % uint(b)); }

// e^x by the IR's own steps: n = rint(x / ln 2), a polynomial in x - n ln 2, 2^n.
inline float exp_ir(float x) {
    float held = max_ir(min_ir(x, 88.0f), -87.0f);
    float whole = sycl::rint(held * 1.4426950216293335f);
    float r = fma_ir(whole, -0.693359375f, held);
    r = fma_ir(whole, 0.00021219444170128554f, r);
    float p = 0.00019875691214110702f;
    p = fma_ir(p, r, 0.001398199936375022f);
    p = fma_ir(p, r, 0.008333452045917511f);
    p = fma_ir(p, r, 0.04166579619050026f);
    p = fma_ir(p, r, 0.1666666567325592f);
    p = fma_ir(p, r, 0.5f);
    p = fma_ir(p, r, 1.0f);
    p = fma_ir(p, r, 1.0f);
    float scaled = p * sycl::bit_cast<float>((int(whole) + 127) << 23);
    return x < -87.0f ? 0.0f : scaled;
}

// Exact for the smallest halves too, which a device may flush to zero.
inline float half_value(uint bits) {
    float small = float(bits & 0x3ffu) * 5.960464477539063e-08f;
    float large = float(sycl::bit_cast<half>(uint16_t(bits & 0x7fffu)));
    float magnitude = (bits & 0x7c00u) == 0u ? small : large;
    return (bits & 0x8000u) == 0u ? magnitude : -magnitude;
}

// The nearest half (ties to even), no larger than the largest, as a float.
inline float half_round(float x) {
    float size = min_ir(sycl::fabs(x), 65504.0f);
    uint bits = sycl::bit_cast<uint>(size);
    bits = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
    float tiny = (size + 0.5f) - 0.5f;  // floats near 0.5 lie 2^-24 apart
    float nearest = size < 6.103515625e-05f ? tiny : sycl::bit_cast<float>(bits);
    return sycl::bit_cast<int>(x) < 0 ? -nearest : nearest;
}

template <int ALIGN, class Byte> float f16_at(const Byte* p, int at) {
    return half_value(bytes_at<uint16_t, ALIGN>(p, at));
}

// Matrices of one sub-group: acc[M, N] += a[M, K] b[K, N]. With SPECCC_JOINT_MATRIX they are the
// device's (XMX); without it, lane l of any sub-group holds columns l, l + SUBGROUP, ... of each.
// A uint16_t is the bits of a bf16.
enum class Order { by_rows, by_columns };

template <class T> T* elements(T* p) { return p; }
#if SPECCC_JOINT_MATRIX
using syclex::bfloat16;
inline bfloat16* elements(uint16_t* p) { return reinterpret_cast<bfloat16*>(p); }
inline const bfloat16* elements(const uint16_t* p) { return reinterpret_cast<const bfloat16*>(p); }
#endif
template <class T> using Element = std::remove_pointer_t<decltype(elements((T*)nullptr))>;

template <class T> auto in_local(T* p) {
    namespace as = sycl::access;
    return sycl::address_space_cast<as::address_space::local_space, as::decorated::no>(elements(p));
}
template <class T> auto in_global(T* p) {
    namespace as = sycl::access;
    return sycl::address_space_cast<as::address_space::global_space, as::decorated::no>(elements(p));
}
inline sycl::sub_group lanes() { return syclex::this_work_item::get_sub_group(); }

#if SPECCC_JOINT_MATRIX
namespace mx = syclexp::matrix;
using Use = mx::use;
constexpr mx::layout layout_of(Order o) {
    return o == Order::by_rows ? mx::layout::row_major : mx::layout::col_major;
}
template <Use U, class T, int ROWS, int COLS, Order O>
using Matrix = mx::joint_matrix<sycl::sub_group, Element<T>, U, ROWS, COLS,
                                U == Use::accumulator ? mx::layout::dynamic : layout_of(O)>;

template <class Mat> void matrix_zero(Mat& m) { mx::joint_matrix_fill(lanes(), m, 0); }
template <Order O, class T, Use U, size_t R, size_t C, mx::layout L, class Ptr>
void matrix_load(mx::joint_matrix<sycl::sub_group, T, U, R, C, L>& m, Ptr p, int stride) {
    if constexpr (U == Use::accumulator) {
        mx::joint_matrix_load(lanes(), m, p, stride, layout_of(O));
    } else {
        mx::joint_matrix_load(lanes(), m, p, stride);
    }
}
template <Order O, class Mat, class Ptr> void matrix_store(Mat& m, Ptr p, int stride) {
    mx::joint_matrix_store(lanes(), m, p, stride, layout_of(O));
}
template <class C, class A, class B> void matrix_mad(C& acc, A& a, B& b) {
    mx::joint_matrix_mad(lanes(), acc, a, b, acc);
}
#else
enum class Use { a, b, accumulator };
inline int lane_id() {
    PER_LANE int id = int(lanes().get_local_linear_id());
    return id;
}
template <Use U, class T, int ROWS, int COLS, Order O> struct Matrix {
    static constexpr int rows = ROWS, cols = COLS, slots = (COLS + SUBGROUP - 1) / SUBGROUP;
    T own[ROWS][slots];

    // What a lane has beyond the last column is added up too: a sum must not overflow.
    Matrix() {
        if constexpr (COLS % SUBGROUP != 0)
            for (auto& row : own)
                for (T& x : row) x = 0;
    }

    // f(element, row, column) for each element of this lane that lies in the matrix.
    template <class F> void each(F f) {
        for (int r = 0; r < ROWS; ++r)
            for (int s = 0; s < slots; ++s)
                if (int c = s * SUBGROUP + lane_id(); c < COLS)
                    f(own[r][s], r, c);
    }
};
template <Order O> int place(int r, int c, int stride) {
    return O == Order::by_rows ? r * stride + c : c * stride + r;
}
template <class Mat> void matrix_zero(Mat& m) {
    m.each([](auto& x, int, int) { x = 0; });
}
template <Order O, class Mat, class Ptr> void matrix_load(Mat& m, Ptr p, int stride) {
    m.each([=](auto& x, int r, int c) { x = p[place<O>(r, c, stride)]; });
}
template <Order O, class Mat, class Ptr> void matrix_store(Mat& m, Ptr p, int stride) {
    m.each([=](auto& x, int r, int c) { p[place<O>(r, c, stride)] = x; });
}
template <class T> T number(T x) { return x; }
inline float number(uint16_t bits) { return sycl::bit_cast<float>(uint(bits) << 16); }
template <class T> T product_sum(T a, T b, T c) { return c + a * b; }
inline float product_sum(float a, float b, float c) { return sycl::fma(a, b, c); }
template <Use U, class T, int M, int N, Order O, class A, class B>
void matrix_mad(Matrix<U, T, M, N, O>& acc, A& a, B& b) {
#pragma clang loop unroll(disable)
    for (int k = 0; k < A::cols; ++k)
#pragma clang loop unroll(disable)
        for (int r = 0; r < M; ++r) {
            T x = sycl::group_broadcast(lanes(), T(number(a.own[r][k / SUBGROUP])), k % SUBGROUP);
            for (int s = 0; s < B::slots; ++s)
                acc.own[r][s] = product_sum(x, T(number(b.own[k][s])), acc.own[r][s]);
        }
}
#endif

extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::nd_range_kernel<1>)
SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::sub_group_size<16>)
SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::work_group_size<64>)
void product(const float* x, const uint8_t* w, float* y, const int* sizes) {
    const int m = sizes[0];
    const auto item = syclex::this_work_item::get_nd_item<1>();
    PER_LANE int invocation = int(item.get_local_linear_id());
    PER_LANE int subgroup = int(item.get_sub_group().get_group_linear_id());
    const int workgroup = int(item.get_group_linear_id());
    const int workgroups = int(item.get_group_range(0));
    alignas(64) syclexp::work_group_static<half[2048]> x_floats;
    alignas(64) syclexp::work_group_static<half[1024]> w_floats;
    alignas(64) syclexp::work_group_static<float[2048]> float_sums;
    syclexp::work_group_static<float[512]> acc;
    ROLLED for (int panel = div_ir(workgroup * (2), workgroups); panel < div_ir((workgroup + 1) * (2), workgroups); ++panel) {
        ROLLED for (int row_tile = 0; row_tile < div_ir(m + 31, 32); ++row_tile) {
            ROLLED for (int e = invocation; e < (min_ir(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int v = mod_ir(e, 16);
                int u = div_ir(e, 16);
                float value = 0.0f;
                acc[(u * 16) + v] = value;
            }
            ROLLED for (int chunk = 0; chunk < 2; ++chunk) {
                ROLLED for (int e = invocation; e < (div_ir(min_ir(100 - (chunk * 64), 64) + 15, 16) * 16) * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int t = div_ir(e, 16);
                    half value = (t < min_ir(100 - (chunk * 64), 64)) ? half(f16_at<2>(w, (panel * 3200) + (((((chunk * 64) + min_ir(t, min_ir(100 - (chunk * 64), 64) - 1)) * 16) + j) * 2))) : half(0.0f);
                    w_floats[(t * 16) + j] = value;
                }
                ROLLED for (int e = invocation; e < (div_ir(min_ir(m - (row_tile * 32), 32) + 7, 8) * 8) * (div_ir(min_ir(100 - (chunk * 64), 64) + 15, 16) * 16); e += INVOCATIONS) {
                    int t = mod_ir(e, (div_ir(min_ir(100 - (chunk * 64), 64) + 15, 16) * 16));
                    int i = div_ir(e, (div_ir(min_ir(100 - (chunk * 64), 64) + 15, 16) * 16));
                    half value = (i < min_ir(m - (row_tile * 32), 32)) ? ((t < min_ir(100 - (chunk * 64), 64)) ? half(half_round(x[(((row_tile * 32) + min_ir(i, min_ir(m - (row_tile * 32), 32) - 1)) * 100) + ((chunk * 64) + min_ir(t, min_ir(100 - (chunk * 64), 64) - 1))])) : half(0.0f)) : half(0.0f);
                    x_floats[(i * 64) + t] = value;
                }
                sycl::group_barrier(item.get_group());
                ROLLED for (int part = subgroup; part < div_ir(min_ir(m - (row_tile * 32), 32) + 7, 8) * 4; part += SUBGROUPS) {
                    Matrix<Use::accumulator, float, M, N, Order::by_rows> frag_c;
                    matrix_zero(frag_c);
                    ROLLED for (int step = mod_ir(part, 4); step < min_ir(mod_ir(part, 4) + 1, div_ir(min_ir(100 - (chunk * 64), 64) + 15, 16)); ++step) {
                        Matrix<Use::a, half, M, K, Order::by_rows> frag_a;
                        matrix_load<Order::by_rows>(frag_a, in_local(&x_floats[((div_ir(part, 4) * 8) * 64) + (step * 16)]), 64);
                        Matrix<Use::b, half, K, N, Order::by_rows> frag_b;
                        matrix_load<Order::by_rows>(frag_b, in_local(&w_floats[(step * 16) * 16]), 16);
                        matrix_mad(frag_c, frag_a, frag_b);
                    }
                    matrix_store<Order::by_rows>(frag_c, in_local(&float_sums[((div_ir(part, 4) * 8) + (mod_ir(part, 4) * 32)) * 16]), 16);
                }
                sycl::group_barrier(item.get_group());
                ROLLED for (int e = invocation; e < (min_ir(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int i = div_ir(e, 16);
                    float value = acc[(i * 16) + j] + (((float_sums[(i * 16) + j] + float_sums[((i + 32) * 16) + j]) + float_sums[((i + 64) * 16) + j]) + float_sums[((i + 96) * 16) + j]);
                    acc[(i * 16) + j] = value;
                }
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < (min_ir(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int s = mod_ir(e, 16);
                int r = div_ir(e, 16);
                float value = acc[(r * 16) + s];
                y[(((row_tile * 32) + r) * 32) + ((panel * 16) + s)] = value;
            }
        }
    }
}
