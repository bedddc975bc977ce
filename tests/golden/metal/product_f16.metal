// product for Metal, f16*f16->f32 8x8x8, 2 subgroups of 32.
// sha256 of what follows: dedcf534977a372a
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
using namespace metal;

constant int INVOCATIONS = 64;
constant int SUBGROUPS = 2;
constant int M = 8, N = 8, K = 8;

struct Sizes {
    int m;
};

// a * b + c, rounded once.
static inline float fma_ir(float a, float b, float c) {
    return fma(a, b, c);
}

// The sum of the products of four pairs of signed bytes.
static inline int dot4_ir(int a, int b) {
    char4 x = as_type<char4>(a), y = as_type<char4>(b);
    return int(x.x) * int(y.x) + int(x.y) * int(y.y) + int(x.z) * int(y.z) + int(x.w) * int(y.w);
}

// Of numbers that are not negative: that a sign might be there takes many steps.
static inline int div_ir(int a, int b) { return int(uint(a) / uint(b)); }
static inline int mod_ir(int a, int b) { return int(uint(a) % uint(b)); }

// e^x by the IR's own steps: n = rint(x / ln 2), a polynomial in x - n ln 2, 2^n.
static inline float exp_ir(float x) {
    float held = max(min(x, 88.0f), -87.0f);
    float whole = rint(held * 1.4426950216293335f);
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
    float scaled = p * as_type<float>((int(whole) + 127) << 23);
    return x < -87.0f ? 0.0f : scaled;
}

// Exact for the smallest halves too, which a device may flush to zero.
static inline float half_value(uint bits) {
    float small = float(bits & 0x3ffu) * 5.960464477539063e-08f;
    float large = float(as_type<half>(ushort(bits & 0x7fffu)));
    float magnitude = (bits & 0x7c00u) == 0u ? small : large;
    return (bits & 0x8000u) == 0u ? magnitude : -magnitude;
}

// The nearest half (ties to even), no larger than the largest, as a float.
static inline float half_round(float x) {
    float size = min(abs(x), 65504.0f);
    uint bits = as_type<uint>(size);
    bits = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
    float tiny = (size + 0.5f) - 0.5f;  // floats near 0.5 lie 2^-24 apart
    float nearest = size < 6.103515625e-05f ? tiny : as_type<float>(bits);
    return as_type<int>(x) < 0 ? -nearest : nearest;
}

kernel void product(
    device const float* x [[buffer(0)]],
    device const uchar* w [[buffer(1)]],
    device float* y [[buffer(2)]],
    constant Sizes& sizes [[buffer(3)]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup_number [[simdgroup_index_in_threadgroup]],
    uint group_number [[threadgroup_position_in_grid]],
    uint group_count [[threadgroups_per_grid]]) {
    const int invocation = int(thread_number);
    const int workgroup = int(group_number);
    const int workgroups = int(group_count);
    const int m = sizes.m;
    threadgroup half x_floats[2048];
    threadgroup half w_floats[1024];
    threadgroup float float_sums[512];
    threadgroup float acc[512];
    for (int panel = div_ir(workgroup * (2), workgroups); panel < div_ir((workgroup + 1) * (2), workgroups); ++panel) {
        for (int row_tile = 0; row_tile < div_ir(m + 31, 32); ++row_tile) {
            for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int v = mod_ir(e, 16);
                int u = div_ir(e, 16);
                float value = 0.0f;
                acc[(u * 16) + v] = value;
            }
            for (int chunk = 0; chunk < 2; ++chunk) {
                for (int e = invocation; e < (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8) * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int t = div_ir(e, 16);
                    half value = (t < min(100 - (chunk * 64), 64)) ? half(half_value(uint(*(device const ushort*)(w + ((panel * 3200) + (((((chunk * 64) + min(t, min(100 - (chunk * 64), 64) - 1)) * 16) + j) * 2)))))) : half(0.0f);
                    w_floats[(t * 16) + j] = value;
                }
                for (int e = invocation; e < (div_ir(min(m - (row_tile * 32), 32) + 7, 8) * 8) * (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8); e += INVOCATIONS) {
                    int t = mod_ir(e, (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8));
                    int i = div_ir(e, (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8));
                    half value = (i < min(m - (row_tile * 32), 32)) ? ((t < min(100 - (chunk * 64), 64)) ? half(half_round(x[(((row_tile * 32) + min(i, min(m - (row_tile * 32), 32) - 1)) * 100) + ((chunk * 64) + min(t, min(100 - (chunk * 64), 64) - 1))])) : half(0.0f)) : half(0.0f);
                    x_floats[(i * 64) + t] = value;
                }
                threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
                for (int part = int(simdgroup_number); part < div_ir(min(m - (row_tile * 32), 32) + 7, 8) * 2; part += SUBGROUPS) {
                    simdgroup_matrix<float, 8, 8> frag_c;
                    frag_c = make_filled_simdgroup_matrix<float, 8, 8>(float(0));
                    for (int step = 0; step < div_ir(min(100 - (chunk * 64), 64) + 7, 8); ++step) {
                        simdgroup_matrix<half, 8, 8> frag_a;
                        simdgroup_load(frag_a, &x_floats[((div_ir(part, 2) * 8) * 64) + (step * 8)], 64, ulong2(0, 0), false);
                        simdgroup_matrix<half, 8, 8> frag_b;
                        simdgroup_load(frag_b, &w_floats[((step * 8) * 16) + (mod_ir(part, 2) * 8)], 16, ulong2(0, 0), false);
                        simdgroup_multiply_accumulate(frag_c, frag_a, frag_b, frag_c);
                    }
                    simdgroup_store(frag_c, &float_sums[((div_ir(part, 2) * 8) * 16) + (mod_ir(part, 2) * 8)], 16, ulong2(0, 0), false);
                }
                threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
                for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int i = div_ir(e, 16);
                    float value = acc[(i * 16) + j] + float_sums[(i * 16) + j];
                    acc[(i * 16) + j] = value;
                }
            }
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
            for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int s = mod_ir(e, 16);
                int r = div_ir(e, 16);
                float value = acc[(r * 16) + s];
                y[(((row_tile * 32) + r) * 32) + ((panel * 16) + s)] = value;
            }
        }
    }
}
