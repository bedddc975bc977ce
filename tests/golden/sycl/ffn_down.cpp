// ffn_down for SYCL, sycl:bmg, i8*i8->i32 8x16x32, 4 subgroups of 16.
// sha256 of what follows: 9c57862bece1ee65
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
constexpr int M = 8, N = 16, K = 32;
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

template <int ALIGN, class Byte> int i32_at(const Byte* p, int at) {
    return bytes_at<int, ALIGN>(p, at);
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
void ffn_down(const uint8_t* weights, const float* attn_output_5, const float* ffn_gate_up_6, float* ffn_down_7, int8_t* xq, float* xs, int* xi, float* xm, float* amax, float* inverse, const int* sizes) {
    const int m = sizes[0];
    const int length = sizes[1];
    const int slots = sizes[2];
    const int tiles = sizes[3];
    const int weight_bytes = sizes[4];
    const int vector_elements = sizes[5];
    const auto item = syclex::this_work_item::get_nd_item<1>();
    PER_LANE int invocation = int(item.get_local_linear_id());
    PER_LANE int subgroup = int(item.get_sub_group().get_group_linear_id());
    const int workgroup = int(item.get_group_linear_id());
    const int workgroups = int(item.get_group_range(0));
    alignas(64) syclexp::work_group_static<int8_t[1024]> x_tile;
    alignas(64) syclexp::work_group_static<int8_t[512]> w_tile;
    alignas(64) syclexp::work_group_static<int[512]> dots;
    syclexp::work_group_static<int[512]> x_words;
    syclexp::work_group_static<int[1024]> lane_dots;
    syclexp::work_group_static<float[128]> partial;
    syclexp::work_group_static<int[128]> partial_2;
    syclexp::work_group_static<float[512]> acc0;
    ROLLED for (int r = 0; r < m; ++r) {
        ROLLED for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
            int lane_2 = mod_ir(e, 16);
            int b = div_ir(e, 16);
            float total = sycl::bit_cast<float>(0xff800000u);
            for (int step = 0; step < div_ir(47 - lane_2, 16); ++step) {
                total = max_ir(total, sycl::fabs(ffn_gate_up_6[(r * 160) + ((b * 32) + ((step * 16) + lane_2))]));
            }
            partial[(b * 16) + lane_2] = total;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = max_ir(max_ir(max_ir(max_ir(partial[b * 16], partial[(b * 16) + 8]), max_ir(partial[(b * 16) + 4], partial[(b * 16) + 12])), max_ir(max_ir(partial[(b * 16) + 2], partial[(b * 16) + 10]), max_ir(partial[(b * 16) + 6], partial[(b * 16) + 14]))), max_ir(max_ir(max_ir(partial[(b * 16) + 1], partial[(b * 16) + 9]), max_ir(partial[(b * 16) + 5], partial[(b * 16) + 13])), max_ir(max_ir(partial[(b * 16) + 3], partial[(b * 16) + 11]), max_ir(partial[(b * 16) + 7], partial[(b * 16) + 15]))));
            amax[workgroup * (5) + b] = value;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = amax[workgroup * (5) + b] / 127.0f;
            xs[workgroup * (m * 5) + (r * 5) + b] = value;
        }
        ROLLED for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = (0.0f < amax[workgroup * (5) + b]) ? (127.0f / amax[workgroup * (5) + b]) : 0.0f;
            inverse[workgroup * (5) + b] = value;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int e = invocation; e < 5 * 32; e += INVOCATIONS) {
            int t = mod_ir(e, 32);
            int b = div_ir(e, 32);
            int8_t value = int8_t(int(sycl::rint(ffn_gate_up_6[(r * 160) + ((b * 32) + t)] * inverse[workgroup * (5) + b])));
            xq[workgroup * (m * 160) + (r * 160) + ((b * 32) + t)] = value;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
            int lane_2 = mod_ir(e, 16);
            int b = div_ir(e, 16);
            int total = 0;
            for (int step = 0; step < div_ir(47 - lane_2, 16); ++step) {
                total = total + int(xq[workgroup * (m * 160) + (r * 160) + ((b * 32) + ((step * 16) + lane_2))]);
            }
            partial_2[(b * 16) + lane_2] = total;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            int value = (((partial_2[b * 16] + partial_2[(b * 16) + 8]) + (partial_2[(b * 16) + 4] + partial_2[(b * 16) + 12])) + ((partial_2[(b * 16) + 2] + partial_2[(b * 16) + 10]) + (partial_2[(b * 16) + 6] + partial_2[(b * 16) + 14]))) + (((partial_2[(b * 16) + 1] + partial_2[(b * 16) + 9]) + (partial_2[(b * 16) + 5] + partial_2[(b * 16) + 13])) + ((partial_2[(b * 16) + 3] + partial_2[(b * 16) + 11]) + (partial_2[(b * 16) + 7] + partial_2[(b * 16) + 15])));
            xi[workgroup * (m * 5) + (r * 5) + b] = value;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = xs[workgroup * (m * 5) + (r * 5) + b] * float(xi[workgroup * (m * 5) + (r * 5) + b]);
            xm[workgroup * (m * 5) + (r * 5) + b] = value;
        }
    }
    ROLLED for (int panel = div_ir(workgroup * (6), workgroups); panel < div_ir((workgroup + 1) * (6), workgroups); ++panel) {
        ROLLED for (int row_tile = 0; row_tile < div_ir(m + 31, 32); ++row_tile) {
            ROLLED for (int e = invocation; e < (min_ir(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                float value = 0.0f;
                acc0[(i * 16) + j] = value;
            }
            ROLLED for (int few = 0; few < min_ir(div_ir(8, min_ir(m - (row_tile * 32), 32)), 1); ++few) {
                ROLLED for (int chunk = 0; chunk < 1; ++chunk) {
                    ROLLED for (int e = invocation; e < 5 * (min_ir(m - (row_tile * 32), 32)) * 8; e += INVOCATIONS) {
                        int q = mod_ir(e, 8);
                        int i = mod_ir(div_ir(e, 8), (min_ir(m - (row_tile * 32), 32)));
                        int u = div_ir(div_ir(e, 8), (min_ir(m - (row_tile * 32), 32)));
                        int value = (((int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + ((((chunk * 5) + u) * 32) + (q * 4))]) & 255) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 1)]) & 255) << uint(8)))) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 2)]) & 255) << uint(16)))) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 3)])) << uint(24)));
                        x_words[(((u * 8) + i) * 8) + q] = value;
                    }
                    sycl::group_barrier(item.get_group());
                    if (min_ir(m - (row_tile * 32), 32) <= 1) {
                        ROLLED for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            int sum_0 = 0;
                            for (int q = 0; q < 4; ++q) {
                                int codes = i32_at<4>(weights, ((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)));
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dot4_ir(x_words[((v * 8) * 8) + q], low) + dot4_ir(x_words[((v * 8) * 8) + (q + 4)], high));
                            }
                            lane_dots[((v * 8) * 16) + j] = sum_0;
                        }
                    }
                    else if (min_ir(m - (row_tile * 32), 32) <= 2) {
                        ROLLED for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            int sum_0 = 0, sum_1 = 0;
                            for (int q = 0; q < 4; ++q) {
                                int codes = i32_at<4>(weights, ((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)));
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dot4_ir(x_words[((v * 8) * 8) + q], low) + dot4_ir(x_words[((v * 8) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dot4_ir(x_words[(((v * 8) + 1) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + 1) * 8) + (q + 4)], high));
                            }
                            lane_dots[((v * 8) * 16) + j] = sum_0;
                            lane_dots[(((v * 8) + 1) * 16) + j] = sum_1;
                        }
                    }
                    else if (min_ir(m - (row_tile * 32), 32) <= 4) {
                        ROLLED for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            int sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;
                            for (int q = 0; q < 4; ++q) {
                                int codes = i32_at<4>(weights, ((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)));
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dot4_ir(x_words[((v * 8) * 8) + q], low) + dot4_ir(x_words[((v * 8) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dot4_ir(x_words[(((v * 8) + 1) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + 1) * 8) + (q + 4)], high));
                                sum_2 = sum_2 + (dot4_ir(x_words[(((v * 8) + 2) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + 2) * 8) + (q + 4)], high));
                                sum_3 = sum_3 + (dot4_ir(x_words[(((v * 8) + min_ir(3, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + min_ir(3, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                            }
                            lane_dots[((v * 8) * 16) + j] = sum_0;
                            lane_dots[(((v * 8) + 1) * 16) + j] = sum_1;
                            lane_dots[(((v * 8) + 2) * 16) + j] = sum_2;
                            if (3 < min_ir(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 3) * 16) + j] = sum_3;
                        }
                    }
                    else {
                        ROLLED for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            int sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0, sum_4 = 0, sum_5 = 0, sum_6 = 0, sum_7 = 0;
                            for (int q = 0; q < 4; ++q) {
                                int codes = i32_at<4>(weights, ((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)));
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dot4_ir(x_words[((v * 8) * 8) + q], low) + dot4_ir(x_words[((v * 8) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dot4_ir(x_words[(((v * 8) + 1) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + 1) * 8) + (q + 4)], high));
                                sum_2 = sum_2 + (dot4_ir(x_words[(((v * 8) + 2) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + 2) * 8) + (q + 4)], high));
                                sum_3 = sum_3 + (dot4_ir(x_words[(((v * 8) + 3) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + 3) * 8) + (q + 4)], high));
                                sum_4 = sum_4 + (dot4_ir(x_words[(((v * 8) + 4) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + 4) * 8) + (q + 4)], high));
                                sum_5 = sum_5 + (dot4_ir(x_words[(((v * 8) + min_ir(5, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + min_ir(5, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                                sum_6 = sum_6 + (dot4_ir(x_words[(((v * 8) + min_ir(6, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + min_ir(6, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                                sum_7 = sum_7 + (dot4_ir(x_words[(((v * 8) + min_ir(7, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dot4_ir(x_words[(((v * 8) + min_ir(7, min_ir(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                            }
                            lane_dots[((v * 8) * 16) + j] = sum_0;
                            lane_dots[(((v * 8) + 1) * 16) + j] = sum_1;
                            lane_dots[(((v * 8) + 2) * 16) + j] = sum_2;
                            lane_dots[(((v * 8) + 3) * 16) + j] = sum_3;
                            lane_dots[(((v * 8) + 4) * 16) + j] = sum_4;
                            if (5 < min_ir(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 5) * 16) + j] = sum_5;
                            if (6 < min_ir(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 6) * 16) + j] = sum_6;
                            if (7 < min_ir(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 7) * 16) + j] = sum_7;
                        }
                    }
                    sycl::group_barrier(item.get_group());
                    ROLLED for (int e = invocation; e < (min_ir(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                        int j = mod_ir(e, 16);
                        int i = div_ir(e, 16);
                        float sum = acc0[(i * 16) + j];
                        for (int v = 0; v < 5; ++v) {
                            sum = fma_ir(f16_at<2>(weights, (((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + 288) + (j * 2)), xm[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + ((chunk * 5) + v)], fma_ir(float(lane_dots[(((v * 8) + i) * 16) + j]), xs[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + ((chunk * 5) + v)] * f16_at<2>(weights, (((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + 256) + (j * 2)), sum));
                        }
                        acc0[(i * 16) + j] = sum;
                    }
                }
            }
            ROLLED for (int many = min_ir(div_ir(8, min_ir(m - (row_tile * 32), 32)), 1); many < 1; ++many) {
                ROLLED for (int b = 0; b < 5; ++b) {
                    ROLLED for (int e = invocation; e < 16 * 32; e += INVOCATIONS) {
                        int t = mod_ir(e, 32);
                        int j = div_ir(e, 32);
                        int8_t value = int8_t((int(uint(int(weights[((64256 + (panel * 1600)) + (b * 320)) + ((mod_ir(div_ir(t, 4), 4) * 64) + ((j * 4) + mod_ir(t, 4)))])) >> uint(int(div_ir(div_ir(t, 4), 4) * 4)))) & 15);
                        w_tile[(j * 32) + t] = value;
                    }
                    ROLLED for (int e = invocation; e < (div_ir(min_ir(m - (row_tile * 32), 32) + 7, 8) * 8) * 32; e += INVOCATIONS) {
                        int t = mod_ir(e, 32);
                        int i = div_ir(e, 32);
                        int8_t value = (i < min_ir(m - (row_tile * 32), 32)) ? xq[workgroup * (m * 160) + (((row_tile * 32) + min_ir(i, min_ir(m - (row_tile * 32), 32) - 1)) * 160) + ((b * 32) + t)] : int8_t(0);
                        x_tile[(i * 32) + t] = value;
                    }
                    sycl::group_barrier(item.get_group());
                    ROLLED for (int part = subgroup; part < div_ir(min_ir(m - (row_tile * 32), 32) + 7, 8); part += SUBGROUPS) {
                        Matrix<Use::accumulator, int, M, N, Order::by_rows> frag_c;
                        matrix_zero(frag_c);
                        Matrix<Use::a, int8_t, M, K, Order::by_rows> frag_a;
                        matrix_load<Order::by_rows>(frag_a, in_local(&x_tile[(part * 8) * 32]), 32);
                        Matrix<Use::b, int8_t, K, N, Order::by_columns> frag_b;
                        matrix_load<Order::by_columns>(frag_b, in_local(&w_tile[0]), 32);
                        matrix_mad(frag_c, frag_a, frag_b);
                        matrix_store<Order::by_rows>(frag_c, in_local(&dots[(part * 8) * 16]), 16);
                    }
                    sycl::group_barrier(item.get_group());
                    ROLLED for (int e = invocation; e < (min_ir(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                        int j = mod_ir(e, 16);
                        int i = div_ir(e, 16);
                        float value = fma_ir(f16_at<2>(weights, (((64256 + (panel * 1600)) + (b * 320)) + 288) + (j * 2)), xm[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + b], fma_ir(float(dots[(i * 16) + j]), xs[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + b] * f16_at<2>(weights, (((64256 + (panel * 1600)) + (b * 320)) + 256) + (j * 2)), acc0[(i * 16) + j]));
                        acc0[(i * 16) + j] = value;
                    }
                }
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < (min_ir(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                float value = attn_output_5[(((row_tile * 32) + i) * 96) + ((panel * 16) + j)] + acc0[(i * 16) + j];
                ffn_down_7[(((row_tile * 32) + i) * 96) + ((panel * 16) + j)] = value;
            }
        }
    }
}
