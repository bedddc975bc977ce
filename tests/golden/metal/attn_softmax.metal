// attn_softmax for Metal, metal:m4, no matrix instruction, 2 subgroups of 32.
// sha256 of what follows: 7b4b0f823539cdd8
#include <metal_stdlib>
#include <metal_simdgroup_matrix>
#pragma METAL fp math_mode(safe)
#pragma METAL fp contract(off)
using namespace metal;

constant int INVOCATIONS = 64;
constant int SUBGROUPS = 2;

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

kernel void attn_softmax(
    device const int* depth [[buffer(0)]],
    device const int* path [[buffer(1)]],
    device float* scores_6 [[buffer(2)]],
    device float* attn_inverse_4 [[buffer(3)]],
    constant Sizes& sizes [[buffer(4)]],
    uint thread_number [[thread_index_in_threadgroup]],
    uint simdgroup_number [[simdgroup_index_in_threadgroup]],
    uint group_number [[threadgroup_position_in_grid]],
    uint group_count [[threadgroups_per_grid]]) {
    const int invocation = int(thread_number);
    const int workgroup = int(group_number);
    const int workgroups = int(group_count);
    const int m = sizes.m;
    const int length = sizes.length;
    const int slots = sizes.slots;
    const int tiles = sizes.tiles;
    const int weight_bytes = sizes.weight_bytes;
    const int vector_elements = sizes.vector_elements;
    threadgroup float top[1];
    threadgroup float part[16];
    threadgroup float sum[1];
    threadgroup float tail[64];
    threadgroup float partial[16];
    threadgroup float partial_2[16];
    for (int unit = div_ir(workgroup * (m * 6), workgroups); unit < div_ir((workgroup + 1) * (m * 6), workgroups); ++unit) {
        for (int e = invocation; e < 64; e += INVOCATIONS) {
            int z = e;
            float value = -1.0000000150474662e+30f;
            tail[z] = value;
        }
        for (int e = invocation; e < 16; e += INVOCATIONS) {
            int lane_2 = e;
            float total = as_type<float>(0xff800000u);
            for (int step = 0; step < div_ir((length + 15) - lane_2, 16); ++step) {
                total = max(total, scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + ((step * 16) + lane_2)]);
            }
            partial[lane_2] = total;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        if (invocation == 0) {
            float value = max(max(max(max(partial[0], partial[8]), max(partial[4], partial[12])), max(max(partial[2], partial[10]), max(partial[6], partial[14]))), max(max(max(partial[1], partial[9]), max(partial[5], partial[13])), max(max(partial[3], partial[11]), max(partial[7], partial[15]))));
            top[0] = value;
        }
        for (int d = 0; d < int(depth[mod_ir(unit, m)]) + 1; ++d) {
            if (invocation == 0) {
                float value = scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + (length + int(path[(mod_ir(unit, m) * 64) + d]))];
                tail[d] = value;
            }
            if (invocation == 0) {
                float value = max(top[0], tail[d]);
                top[0] = value;
            }
        }
        for (int e = invocation; e < 16; e += INVOCATIONS) {
            int y = e;
            float value = 0.0f;
            part[y] = value;
        }
        for (int t = 0; t < div_ir(length, 16); ++t) {
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
            for (int e = invocation; e < 16; e += INVOCATIONS) {
                int j = e;
                float value = exp_ir(scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + ((t * 16) + j)] - top[0]);
                scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + ((t * 16) + j)] = value;
            }
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
            for (int e = invocation; e < 16; e += INVOCATIONS) {
                int l = e;
                float value = part[l] + scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + ((t * 16) + l)];
                part[l] = value;
            }
        }
        for (int u = div_ir(length, 16); u < div_ir(div_ir(length + 15, 16) * 16, 16); ++u) {
            threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
            for (int e = invocation; e < 16; e += INVOCATIONS) {
                int j = e;
                float value = exp_ir(scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + ((u * 16) + j)] - top[0]);
                scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + ((u * 16) + j)] = value;
            }
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < (div_ir((int(depth[mod_ir(unit, m)]) + 1) + 15, 16) * 16); e += INVOCATIONS) {
            int d = e;
            float value = exp_ir(tail[d] - top[0]);
            tail[d] = value;
        }
        for (int e = invocation; e < m; e += INVOCATIONS) {
            int z = e;
            float value = 0.0f;
            scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + (length + z)] = value;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int d = 0; d < int(depth[mod_ir(unit, m)]) + 1; ++d) {
            if (invocation == 0) {
                float value = tail[d];
                scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + (length + int(path[(mod_ir(unit, m) * 64) + d]))] = value;
            }
        }
        for (int s = div_ir(length, 16) * 16; s < length; ++s) {
            if (invocation == 0) {
                float value = part[mod_ir(s, 16)] + scores_6[(((div_ir(unit, m) * m) + mod_ir(unit, m)) * slots) + s];
                part[mod_ir(s, 16)] = value;
            }
        }
        for (int d = 0; d < int(depth[mod_ir(unit, m)]) + 1; ++d) {
            if (invocation == 0) {
                float value = part[mod_ir(length + d, 16)] + tail[d];
                part[mod_ir(length + d, 16)] = value;
            }
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        for (int e = invocation; e < 16; e += INVOCATIONS) {
            int lane_2 = e;
            float total = 0.0f;
            for (int step = 0; step < div_ir(31 - lane_2, 16); ++step) {
                total = total + part[(step * 16) + lane_2];
            }
            partial_2[lane_2] = total;
        }
        threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
        if (invocation == 0) {
            float value = (((partial_2[0] + partial_2[8]) + (partial_2[4] + partial_2[12])) + ((partial_2[2] + partial_2[10]) + (partial_2[6] + partial_2[14]))) + (((partial_2[1] + partial_2[9]) + (partial_2[5] + partial_2[13])) + ((partial_2[3] + partial_2[11]) + (partial_2[7] + partial_2[15])));
            sum[0] = value;
        }
        if (invocation == 0) {
            float value = 1.0f / sum[0];
            attn_inverse_4[(div_ir(unit, m) * m) + mod_ir(unit, m)] = value;
        }
    }
}
