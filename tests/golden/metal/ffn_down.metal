// ffn_down for Metal, metal:m4, f16*f16->f32 8x8x8, 2 subgroups of 32.
// sha256 of what follows: ead0bc75850067c3
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
    int length;
    int slots;
    int tiles;
    int weight_bytes;
    int vector_elements;
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

kernel void ffn_down(
    device const uchar* weights [[buffer(0)]],
    device const float* attn_output_5 [[buffer(1)]],
    device const float* ffn_gate_up_6 [[buffer(2)]],
    device float* ffn_down_7 [[buffer(3)]],
    device char* xq [[buffer(4)]],
    device float* xs [[buffer(5)]],
    device int* xi [[buffer(6)]],
    device float* xm [[buffer(7)]],
    device float* amax [[buffer(8)]],
    device float* inverse [[buffer(9)]],
    constant Sizes& sizes [[buffer(10)]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup_number [[simdgroup_index_in_threadgroup]],
    uint group_number [[threadgroup_position_in_grid]],
    uint group_count [[threadgroups_per_grid]],
    uint lane_number [[thread_index_in_simdgroup]]) {
    const int invocation = int(thread_number);
    const int workgroup = int(group_number);
    const int workgroups = int(group_count);
    const int m = sizes.m;
    const int length = sizes.length;
    const int slots = sizes.slots;
    const int tiles = sizes.tiles;
    const int weight_bytes = sizes.weight_bytes;
    const int vector_elements = sizes.vector_elements;
    threadgroup half x_tile[1024];
    threadgroup half w_tile[512];
    threadgroup float dots[512];
    threadgroup int x_words[512];
    threadgroup int lane_dots[1024];
    threadgroup float partial[128];
    threadgroup int partial_2[128];
    threadgroup float acc0[512];
    for (int r = 0; r < m; ++r) {
        for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
            int lane_2 = mod_ir(e, 16);
            int b = div_ir(e, 16);
            float total = as_type<float>(0xff800000u);
            for (int step = 0; step < div_ir(47 - lane_2, 16); ++step) {
                total = max(total, abs(ffn_gate_up_6[(r * 160) + ((b * 32) + ((step * 16) + lane_2))]));
            }
            partial[(b * 16) + lane_2] = total;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = max(max(max(max(partial[b * 16], partial[(b * 16) + 8]), max(partial[(b * 16) + 4], partial[(b * 16) + 12])), max(max(partial[(b * 16) + 2], partial[(b * 16) + 10]), max(partial[(b * 16) + 6], partial[(b * 16) + 14]))), max(max(max(partial[(b * 16) + 1], partial[(b * 16) + 9]), max(partial[(b * 16) + 5], partial[(b * 16) + 13])), max(max(partial[(b * 16) + 3], partial[(b * 16) + 11]), max(partial[(b * 16) + 7], partial[(b * 16) + 15]))));
            amax[workgroup * (5) + b] = value;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = amax[workgroup * (5) + b] / 127.0f;
            xs[workgroup * (m * 5) + (r * 5) + b] = value;
        }
        for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = (0.0f < amax[workgroup * (5) + b]) ? (127.0f / amax[workgroup * (5) + b]) : 0.0f;
            inverse[workgroup * (5) + b] = value;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < 5 * 32; e += INVOCATIONS) {
            int t = mod_ir(e, 32);
            int b = div_ir(e, 32);
            char value = char(int(rint(ffn_gate_up_6[(r * 160) + ((b * 32) + t)] * inverse[workgroup * (5) + b])));
            xq[workgroup * (m * 160) + (r * 160) + ((b * 32) + t)] = value;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
            int lane_2 = mod_ir(e, 16);
            int b = div_ir(e, 16);
            int total = 0;
            for (int step = 0; step < div_ir(47 - lane_2, 16); ++step) {
                total = total + int(xq[workgroup * (m * 160) + (r * 160) + ((b * 32) + ((step * 16) + lane_2))]);
            }
            partial_2[(b * 16) + lane_2] = total;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            int value = (((partial_2[b * 16] + partial_2[(b * 16) + 8]) + (partial_2[(b * 16) + 4] + partial_2[(b * 16) + 12])) + ((partial_2[(b * 16) + 2] + partial_2[(b * 16) + 10]) + (partial_2[(b * 16) + 6] + partial_2[(b * 16) + 14]))) + (((partial_2[(b * 16) + 1] + partial_2[(b * 16) + 9]) + (partial_2[(b * 16) + 5] + partial_2[(b * 16) + 13])) + ((partial_2[(b * 16) + 3] + partial_2[(b * 16) + 11]) + (partial_2[(b * 16) + 7] + partial_2[(b * 16) + 15])));
            xi[workgroup * (m * 5) + (r * 5) + b] = value;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            float value = xs[workgroup * (m * 5) + (r * 5) + b] * float(xi[workgroup * (m * 5) + (r * 5) + b]);
            xm[workgroup * (m * 5) + (r * 5) + b] = value;
        }
    }
    for (int panel = div_ir(workgroup * (6), workgroups); panel < div_ir((workgroup + 1) * (6), workgroups); ++panel) {
        for (int row_tile = 0; row_tile < div_ir(m + 31, 32); ++row_tile) {
            for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                float value = 0.0f;
                acc0[(i * 16) + j] = value;
            }
            for (int few = 0; few < min(div_ir(4, min(m - (row_tile * 32), 32)), 1); ++few) {
                for (int chunk = 0; chunk < 1; ++chunk) {
                    for (int e = invocation; e < 5 * (min(m - (row_tile * 32), 32)) * 8; e += INVOCATIONS) {
                        int q = mod_ir(e, 8);
                        int i = mod_ir(div_ir(e, 8), (min(m - (row_tile * 32), 32)));
                        int u = div_ir(div_ir(e, 8), (min(m - (row_tile * 32), 32)));
                        int value = (((int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + ((((chunk * 5) + u) * 32) + (q * 4))]) & 255) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 1)]) & 255) << uint(8)))) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 2)]) & 255) << uint(16)))) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 3)])) << uint(24)));
                        x_words[(((u * 4) + i) * 8) + q] = value;
                    }
                    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
                    if (min(m - (row_tile * 32), 32) <= 1) {
                        for (int first = 0; first < 5 * 16; first += 32) {
                            int at = first + int(simdgroup_number) * 16 + mod_ir(int(lane_number), 16);
                            int e = min(at, 5 * 16 - 1);
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            int sum_0 = 0;
                            for (int turn = 0; turn < 2; ++turn) {
                                int q = div_ir(int(lane_number), 16) + turn * 2;
                                int codes = *(device const int*)(weights + (((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4))));
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dot4_ir(x_words[((v * 4) * 8) + q], low) + dot4_ir(x_words[((v * 4) * 8) + (q + 4)], high));
                            }
                            sum_0 = sum_0 + simd_shuffle_xor(sum_0, ushort(16));
                            if (at < 5 * 16 && int(lane_number) < 16) {
                                lane_dots[((v * 4) * 16) + j] = sum_0;
                            }
                        }
                    }
                    else if (min(m - (row_tile * 32), 32) <= 2) {
                        for (int first = 0; first < 5 * 16; first += 32) {
                            int at = first + int(simdgroup_number) * 16 + mod_ir(int(lane_number), 16);
                            int e = min(at, 5 * 16 - 1);
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            int sum_0 = 0, sum_1 = 0;
                            for (int turn = 0; turn < 2; ++turn) {
                                int q = div_ir(int(lane_number), 16) + turn * 2;
                                int codes = *(device const int*)(weights + (((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4))));
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dot4_ir(x_words[((v * 4) * 8) + q], low) + dot4_ir(x_words[((v * 4) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dot4_ir(x_words[(((v * 4) + 1) * 8) + q], low) + dot4_ir(x_words[(((v * 4) + 1) * 8) + (q + 4)], high));
                            }
                            sum_0 = sum_0 + simd_shuffle_xor(sum_0, ushort(16));
                            sum_1 = sum_1 + simd_shuffle_xor(sum_1, ushort(16));
                            if (at < 5 * 16 && int(lane_number) < 16) {
                                lane_dots[((v * 4) * 16) + j] = sum_0;
                                lane_dots[(((v * 4) + 1) * 16) + j] = sum_1;
                            }
                        }
                    }
                    else {
                        for (int first = 0; first < 5 * 16; first += 32) {
                            int at = first + int(simdgroup_number) * 16 + mod_ir(int(lane_number), 16);
                            int e = min(at, 5 * 16 - 1);
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            int sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;
                            for (int turn = 0; turn < 2; ++turn) {
                                int q = div_ir(int(lane_number), 16) + turn * 2;
                                int codes = *(device const int*)(weights + (((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4))));
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dot4_ir(x_words[((v * 4) * 8) + q], low) + dot4_ir(x_words[((v * 4) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dot4_ir(x_words[(((v * 4) + 1) * 8) + q], low) + dot4_ir(x_words[(((v * 4) + 1) * 8) + (q + 4)], high));
                                sum_2 = sum_2 + (dot4_ir(x_words[(((v * 4) + 2) * 8) + q], low) + dot4_ir(x_words[(((v * 4) + 2) * 8) + (q + 4)], high));
                                sum_3 = sum_3 + (dot4_ir(x_words[(((v * 4) + min(3, min(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dot4_ir(x_words[(((v * 4) + min(3, min(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                            }
                            sum_0 = sum_0 + simd_shuffle_xor(sum_0, ushort(16));
                            sum_1 = sum_1 + simd_shuffle_xor(sum_1, ushort(16));
                            sum_2 = sum_2 + simd_shuffle_xor(sum_2, ushort(16));
                            sum_3 = sum_3 + simd_shuffle_xor(sum_3, ushort(16));
                            if (at < 5 * 16 && int(lane_number) < 16) {
                                lane_dots[((v * 4) * 16) + j] = sum_0;
                                lane_dots[(((v * 4) + 1) * 16) + j] = sum_1;
                                lane_dots[(((v * 4) + 2) * 16) + j] = sum_2;
                                if (3 < min(m - (row_tile * 32), 32)) lane_dots[(((v * 4) + 3) * 16) + j] = sum_3;
                            }
                        }
                    }
                    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
                    for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                        int j = mod_ir(e, 16);
                        int i = div_ir(e, 16);
                        float sum = acc0[(i * 16) + j];
                        for (int v = 0; v < 5; ++v) {
                            sum = fma_ir(half_value(uint(*(device const ushort*)(weights + ((((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + 288) + (j * 2))))), xm[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + ((chunk * 5) + v)], fma_ir(float(lane_dots[(((v * 4) + i) * 16) + j]), xs[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + ((chunk * 5) + v)] * half_value(uint(*(device const ushort*)(weights + ((((64256 + (panel * 1600)) + (((chunk * 5) + v) * 320)) + 256) + (j * 2))))), sum));
                        }
                        acc0[(i * 16) + j] = sum;
                    }
                }
            }
            for (int many = min(div_ir(4, min(m - (row_tile * 32), 32)), 1); many < 1; ++many) {
                for (int b = 0; b < 5; ++b) {
                    for (int e = invocation; e < 16 * 32; e += INVOCATIONS) {
                        int t = mod_ir(e, 32);
                        int j = div_ir(e, 32);
                        half value = half((int(uint(int(weights[((64256 + (panel * 1600)) + (b * 320)) + ((mod_ir(div_ir(t, 4), 4) * 64) + ((j * 4) + mod_ir(t, 4)))])) >> uint(int(div_ir(div_ir(t, 4), 4) * 4)))) & 15);
                        w_tile[(j * 32) + t] = value;
                    }
                    for (int e = invocation; e < (div_ir(min(m - (row_tile * 32), 32) + 7, 8) * 8) * 32; e += INVOCATIONS) {
                        int t = mod_ir(e, 32);
                        int i = div_ir(e, 32);
                        half value = (i < min(m - (row_tile * 32), 32)) ? half(xq[workgroup * (m * 160) + (((row_tile * 32) + min(i, min(m - (row_tile * 32), 32) - 1)) * 160) + ((b * 32) + t)]) : half(0.0f);
                        x_tile[(i * 32) + t] = value;
                    }
                    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
                    for (int part = int(simdgroup_number); part < div_ir(min(m - (row_tile * 32), 32) + 7, 8) * 2; part += SUBGROUPS) {
                        simdgroup_matrix<float, 8, 8> frag_c;
                        frag_c = make_filled_simdgroup_matrix<float, 8, 8>(float(0));
                        simdgroup_matrix<half, 8, 8> frag_a;
                        simdgroup_load(frag_a, &x_tile[(div_ir(part, 2) * 8) * 32], 32, ulong2(0, 0), false);
                        simdgroup_matrix<half, 8, 8> frag_b;
                        simdgroup_load(frag_b, &w_tile[(mod_ir(part, 2) * 8) * 32], 32, ulong2(0, 0), true);
                        simdgroup_multiply_accumulate(frag_c, frag_a, frag_b, frag_c);
                        simdgroup_load(frag_a, &x_tile[((div_ir(part, 2) * 8) * 32) + 8], 32, ulong2(0, 0), false);
                        simdgroup_load(frag_b, &w_tile[((mod_ir(part, 2) * 8) * 32) + 8], 32, ulong2(0, 0), true);
                        simdgroup_multiply_accumulate(frag_c, frag_a, frag_b, frag_c);
                        simdgroup_load(frag_a, &x_tile[((div_ir(part, 2) * 8) * 32) + 16], 32, ulong2(0, 0), false);
                        simdgroup_load(frag_b, &w_tile[((mod_ir(part, 2) * 8) * 32) + 16], 32, ulong2(0, 0), true);
                        simdgroup_multiply_accumulate(frag_c, frag_a, frag_b, frag_c);
                        simdgroup_load(frag_a, &x_tile[((div_ir(part, 2) * 8) * 32) + 24], 32, ulong2(0, 0), false);
                        simdgroup_load(frag_b, &w_tile[((mod_ir(part, 2) * 8) * 32) + 24], 32, ulong2(0, 0), true);
                        simdgroup_multiply_accumulate(frag_c, frag_a, frag_b, frag_c);
                        simdgroup_store(frag_c, &dots[((div_ir(part, 2) * 8) * 16) + (mod_ir(part, 2) * 8)], 16, ulong2(0, 0), false);
                    }
                    threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
                    for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                        int j = mod_ir(e, 16);
                        int i = div_ir(e, 16);
                        float value = fma_ir(half_value(uint(*(device const ushort*)(weights + ((((64256 + (panel * 1600)) + (b * 320)) + 288) + (j * 2))))), xm[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + b], fma_ir(float(int(dots[(i * 16) + j])), xs[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + b] * half_value(uint(*(device const ushort*)(weights + ((((64256 + (panel * 1600)) + (b * 320)) + 256) + (j * 2))))), acc0[(i * 16) + j]));
                        acc0[(i * 16) + j] = value;
                    }
                }
            }
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
            for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                float value = attn_output_5[(((row_tile * 32) + i) * 96) + ((panel * 16) + j)] + acc0[(i * 16) + j];
                ffn_down_7[(((row_tile * 32) + i) * 96) + ((panel * 16) + j)] = value;
            }
        }
    }
}
