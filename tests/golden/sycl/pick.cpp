// pick for SYCL, sycl:bmg, no matrix instruction, 4 subgroups of 16.
// sha256 of what follows: dfabacfa4ab0e274
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
void pick(const float* output_8, const float* head_best_9, const float* head_column_10, int* picks, float* top_values, int* top_tokens, const int* sizes) {
    const int m = sizes[0];
    const int length = sizes[1];
    const int slots = sizes[2];
    const int tiles = sizes[3];
    const int weight_bytes = sizes[4];
    const int vector_elements = sizes[5];
    const int head_first = sizes[6];
    const int head_rows = sizes[7];
    const int head_logits = sizes[8];
    const int head_top = sizes[9];
    const auto item = syclex::this_work_item::get_nd_item<1>();
    PER_LANE int invocation = int(item.get_local_linear_id());
    PER_LANE int subgroup = int(item.get_sub_group().get_group_linear_id());
    const int workgroup = int(item.get_group_linear_id());
    const int workgroups = int(item.get_group_range(0));
    syclexp::work_group_static<float[1]> top;
    syclexp::work_group_static<float[1]> column;
    syclexp::work_group_static<float[16]> partial;
    syclexp::work_group_static<float[16]> partial_2;
    syclexp::work_group_static<float[17]> open;
    syclexp::work_group_static<float[17]> minus;
    syclexp::work_group_static<float[1]> last;
    syclexp::work_group_static<float[1]> taken;
    syclexp::work_group_static<float[16]> partial_3;
    syclexp::work_group_static<float[16]> partial_4;
    syclexp::work_group_static<float[16]> rest;
    syclexp::work_group_static<float[1]> next;
    syclexp::work_group_static<float[1]> at;
    syclexp::work_group_static<float[16]> partial_5;
    syclexp::work_group_static<float[16]> partial_6;
    ROLLED for (int row = div_ir(workgroup * (head_rows), workgroups); row < div_ir((workgroup + 1) * (head_rows), workgroups); ++row) {
        ROLLED for (int e = invocation; e < 16; e += INVOCATIONS) {
            int lane_2 = e;
            float total = sycl::bit_cast<float>(0xff800000u);
            for (int step = 0; step < div_ir(32 - lane_2, 16); ++step) {
                total = max_ir(total, head_best_9[(row * 17) + ((step * 16) + lane_2)]);
            }
            partial[lane_2] = total;
        }
        sycl::group_barrier(item.get_group());
        if (invocation == 0) {
            float value = max_ir(max_ir(max_ir(max_ir(partial[0], partial[8]), max_ir(partial[4], partial[12])), max_ir(max_ir(partial[2], partial[10]), max_ir(partial[6], partial[14]))), max_ir(max_ir(max_ir(partial[1], partial[9]), max_ir(partial[5], partial[13])), max_ir(max_ir(partial[3], partial[11]), max_ir(partial[7], partial[15]))));
            top[0] = value;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int e = invocation; e < 16; e += INVOCATIONS) {
            int lane_2 = e;
            float total = sycl::bit_cast<float>(0xff800000u);
            for (int step = 0; step < div_ir(32 - lane_2, 16); ++step) {
                total = max_ir(total, (head_best_9[(row * 17) + ((step * 16) + lane_2)] == top[0]) ? (-head_column_10[(row * 17) + ((step * 16) + lane_2)]) : sycl::bit_cast<float>(0xff800000u));
            }
            partial_2[lane_2] = total;
        }
        sycl::group_barrier(item.get_group());
        if (invocation == 0) {
            float value = max_ir(max_ir(max_ir(max_ir(partial_2[0], partial_2[8]), max_ir(partial_2[4], partial_2[12])), max_ir(max_ir(partial_2[2], partial_2[10]), max_ir(partial_2[6], partial_2[14]))), max_ir(max_ir(max_ir(partial_2[1], partial_2[9]), max_ir(partial_2[5], partial_2[13])), max_ir(max_ir(partial_2[3], partial_2[11]), max_ir(partial_2[7], partial_2[15]))));
            column[0] = value;
        }
        if (invocation == 0) {
            int value = (sycl::fabs(top[0]) < sycl::bit_cast<float>(0x7f800000u)) ? int(-column[0]) : (-1);
            picks[row] = value;
        }
        ROLLED for (int e = invocation; e < 17; e += INVOCATIONS) {
            int r = e;
            float value = head_best_9[(row * 17) + r];
            open[r] = value;
        }
        ROLLED for (int e = invocation; e < 17; e += INVOCATIONS) {
            int r = e;
            float value = -head_column_10[(row * 17) + r];
            minus[r] = value;
        }
        sycl::group_barrier(item.get_group());
        ROLLED for (int place_2 = 0; place_2 < head_top; ++place_2) {
            ROLLED for (int e = invocation; e < 16; e += INVOCATIONS) {
                int lane_2 = e;
                float total = sycl::bit_cast<float>(0xff800000u);
                for (int step = 0; step < div_ir(32 - lane_2, 16); ++step) {
                    total = max_ir(total, open[(step * 16) + lane_2]);
                }
                partial_3[lane_2] = total;
            }
            sycl::group_barrier(item.get_group());
            if (invocation == 0) {
                float value = max_ir(max_ir(max_ir(max_ir(partial_3[0], partial_3[8]), max_ir(partial_3[4], partial_3[12])), max_ir(max_ir(partial_3[2], partial_3[10]), max_ir(partial_3[6], partial_3[14]))), max_ir(max_ir(max_ir(partial_3[1], partial_3[9]), max_ir(partial_3[5], partial_3[13])), max_ir(max_ir(partial_3[3], partial_3[11]), max_ir(partial_3[7], partial_3[15]))));
                last[0] = value;
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < 16; e += INVOCATIONS) {
                int lane_2 = e;
                float total = sycl::bit_cast<float>(0xff800000u);
                for (int step = 0; step < div_ir(32 - lane_2, 16); ++step) {
                    total = max_ir(total, (open[(step * 16) + lane_2] == last[0]) ? minus[(step * 16) + lane_2] : sycl::bit_cast<float>(0xff800000u));
                }
                partial_4[lane_2] = total;
            }
            sycl::group_barrier(item.get_group());
            if (invocation == 0) {
                float value = max_ir(max_ir(max_ir(max_ir(partial_4[0], partial_4[8]), max_ir(partial_4[4], partial_4[12])), max_ir(max_ir(partial_4[2], partial_4[10]), max_ir(partial_4[6], partial_4[14]))), max_ir(max_ir(max_ir(partial_4[1], partial_4[9]), max_ir(partial_4[5], partial_4[13])), max_ir(max_ir(partial_4[3], partial_4[11]), max_ir(partial_4[7], partial_4[15]))));
                taken[0] = value;
            }
            if (invocation == 0) {
                float value = (sycl::bit_cast<float>(0xff800000u) < last[0]) ? output_8[(row * 272) + min_ir(int(int(-taken[0])), 271)] : sycl::bit_cast<float>(0xff800000u);
                top_values[(row * 64) + place_2] = value;
            }
            if (invocation == 0) {
                int value = int(int(int(-taken[0])));
                top_tokens[(row * 64) + place_2] = value;
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < 16; e += INVOCATIONS) {
                int c = e;
                float value = (((((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c) < 260) ? ((output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] < sycl::bit_cast<float>(0x7f800000u)) ? output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] : sycl::bit_cast<float>(0x7f800000u)) : sycl::bit_cast<float>(0xff800000u)) == last[0]) ? (((-float((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c)) < taken[0]) ? ((((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c) < 260) ? ((output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] < sycl::bit_cast<float>(0x7f800000u)) ? output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] : sycl::bit_cast<float>(0x7f800000u)) : sycl::bit_cast<float>(0xff800000u)) : sycl::bit_cast<float>(0xff800000u)) : ((((((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c) < 260) ? ((output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] < sycl::bit_cast<float>(0x7f800000u)) ? output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] : sycl::bit_cast<float>(0x7f800000u)) : sycl::bit_cast<float>(0xff800000u)) < last[0]) ? ((((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c) < 260) ? ((output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] < sycl::bit_cast<float>(0x7f800000u)) ? output_8[(row * 272) + min_ir((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + c, 271)] : sycl::bit_cast<float>(0x7f800000u)) : sycl::bit_cast<float>(0xff800000u)) : sycl::bit_cast<float>(0xff800000u));
                rest[c] = value;
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < 16; e += INVOCATIONS) {
                int lane_2 = e;
                float total = sycl::bit_cast<float>(0xff800000u);
                for (int step = 0; step < div_ir(31 - lane_2, 16); ++step) {
                    total = max_ir(total, rest[(step * 16) + lane_2]);
                }
                partial_5[lane_2] = total;
            }
            sycl::group_barrier(item.get_group());
            if (invocation == 0) {
                float value = max_ir(max_ir(max_ir(max_ir(partial_5[0], partial_5[8]), max_ir(partial_5[4], partial_5[12])), max_ir(max_ir(partial_5[2], partial_5[10]), max_ir(partial_5[6], partial_5[14]))), max_ir(max_ir(max_ir(partial_5[1], partial_5[9]), max_ir(partial_5[5], partial_5[13])), max_ir(max_ir(partial_5[3], partial_5[11]), max_ir(partial_5[7], partial_5[15]))));
                next[0] = value;
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < 16; e += INVOCATIONS) {
                int lane_2 = e;
                float total = sycl::bit_cast<float>(0xff800000u);
                for (int step = 0; step < div_ir(31 - lane_2, 16); ++step) {
                    total = max_ir(total, (rest[(step * 16) + lane_2] == next[0]) ? (-float((min_ir(div_ir(int(int(-taken[0])), 16), 16) * 16) + ((step * 16) + lane_2))) : (-16777216.0f));
                }
                partial_6[lane_2] = total;
            }
            sycl::group_barrier(item.get_group());
            if (invocation == 0) {
                float value = max_ir(max_ir(max_ir(max_ir(partial_6[0], partial_6[8]), max_ir(partial_6[4], partial_6[12])), max_ir(max_ir(partial_6[2], partial_6[10]), max_ir(partial_6[6], partial_6[14]))), max_ir(max_ir(max_ir(partial_6[1], partial_6[9]), max_ir(partial_6[5], partial_6[13])), max_ir(max_ir(partial_6[3], partial_6[11]), max_ir(partial_6[7], partial_6[15]))));
                at[0] = value;
            }
            ROLLED for (int e = invocation; e < 17; e += INVOCATIONS) {
                int r = e;
                float value = (r == min_ir(div_ir(int(int(-taken[0])), 16), 16)) ? next[0] : open[r];
                open[r] = value;
            }
            sycl::group_barrier(item.get_group());
            ROLLED for (int e = invocation; e < 17; e += INVOCATIONS) {
                int r = e;
                float value = (r == min_ir(div_ir(int(int(-taken[0])), 16), 16)) ? at[0] : minus[r];
                minus[r] = value;
            }
        }
    }
}
