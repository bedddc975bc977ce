// attn_values for SYCL, sycl:bmg, no matrix instruction, 4 subgroups of 16.
// sha256 of what follows: 339529d2f280256d
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

extern "C" SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::nd_range_kernel<1>)
SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::sub_group_size<16>)
SYCL_EXT_ONEAPI_FUNCTION_PROPERTY(syclexp::work_group_size<64>)
void attn_values(const half* v_cache, float* attn_out_3, const float* scores_6, const float* attn_inverse_4, const int* sizes) {
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
    syclexp::work_group_static<float[512]> acc;
    ROLLED for (int unit = div_ir(workgroup * (3), workgroups); unit < div_ir((workgroup + 1) * (3), workgroups); ++unit) {
        ROLLED for (int row_tile = 0; row_tile < div_ir((m * 2) + 31, 32); ++row_tile) {
            ROLLED for (int e = invocation; e < (min_ir((m * 2) - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                float value = 0.0f;
                acc[(i * 16) + j] = value;
            }
            sycl::group_barrier(item.get_group());
            if (div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) <= 1) {
                ROLLED for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    float sum_0 = 0.0f;
                    for (int k = 0; k < length + m; ++k) {
                        float shared = float(v_cache[((((unit + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_0);
                    }
                    if (part < min_ir((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                }
            }
            else if (div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) <= 2) {
                ROLLED for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    float sum_0 = 0.0f, sum_1 = 0.0f;
                    for (int k = 0; k < length + m; ++k) {
                        float shared = float(v_cache[((((unit + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_0);
                        sum_1 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(4 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(4 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_1);
                    }
                    if (part < min_ir((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                    if ((4 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((4 + part) * 16) + j] = sum_1;
                }
            }
            else if (div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) <= 4) {
                ROLLED for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    float sum_0 = 0.0f, sum_1 = 0.0f, sum_2 = 0.0f, sum_3 = 0.0f;
                    for (int k = 0; k < length + m; ++k) {
                        float shared = float(v_cache[((((unit + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_0);
                        sum_1 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(4 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(4 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_1);
                        sum_2 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(8 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(8 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_2);
                        sum_3 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir((min_ir(3, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir((min_ir(3, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_3);
                    }
                    if (part < min_ir((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                    if ((4 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((4 + part) * 16) + j] = sum_1;
                    if ((8 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((8 + part) * 16) + j] = sum_2;
                    if (3 < div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) && (12 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((12 + part) * 16) + j] = sum_3;
                }
            }
            else {
                ROLLED for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    float sum_0 = 0.0f, sum_1 = 0.0f, sum_2 = 0.0f, sum_3 = 0.0f, sum_4 = 0.0f, sum_5 = 0.0f, sum_6 = 0.0f, sum_7 = 0.0f;
                    for (int k = 0; k < length + m; ++k) {
                        float shared = float(v_cache[((((unit + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_0);
                        sum_1 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(4 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(4 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_1);
                        sum_2 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(8 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(8 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_2);
                        sum_3 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(12 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(12 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_3);
                        sum_4 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir(16 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir(16 + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_4);
                        sum_5 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir((min_ir(5, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir((min_ir(5, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_5);
                        sum_6 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir((min_ir(6, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir((min_ir(6, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_6);
                        sum_7 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min_ir((min_ir(7, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min_ir((min_ir(7, div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min_ir((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared, sum_7);
                    }
                    if (part < min_ir((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                    if ((4 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((4 + part) * 16) + j] = sum_1;
                    if ((8 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((8 + part) * 16) + j] = sum_2;
                    if ((12 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((12 + part) * 16) + j] = sum_3;
                    if ((16 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((16 + part) * 16) + j] = sum_4;
                    if (5 < div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) && (20 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((20 + part) * 16) + j] = sum_5;
                    if (6 < div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) && (24 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((24 + part) * 16) + j] = sum_6;
                    if (7 < div_ir(min_ir((m * 2) - (row_tile * 32), 32) + 3, 4) && (28 + part) < min_ir((m * 2) - (row_tile * 32), 32)) acc[((28 + part) * 16) + j] = sum_7;
                }
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < (min_ir((m * 2) - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                float value = acc[(i * 16) + j] * attn_inverse_4[(((unit * 2) + div_ir((row_tile * 32) + i, m)) * m) + mod_ir((row_tile * 32) + i, m)];
                attn_out_3[(mod_ir((row_tile * 32) + i, m) * 96) + ((((unit * 2) + div_ir((row_tile * 32) + i, m)) * 16) + ((mod_ir(unit, 1) * 16) + j))] = value;
            }
        }
    }
}
