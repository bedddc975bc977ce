#version 450
// attn_values for Vulkan, no matrix instruction, 2 subgroups of 32.
// sha256 of what follows: b7c681f1420137b5
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require

layout(local_size_x = 64) in;
const int INVOCATIONS = 64;
const int SUBGROUPS = 2;

layout(set = 0, binding = 0, std430) readonly buffer v_cache_block { float16_t v_cache[]; };
layout(set = 0, binding = 1, std430) buffer attn_out_3_block { float attn_out_3[]; };
layout(set = 0, binding = 2, std430) readonly buffer scores_6_block { float scores_6[]; };
layout(set = 0, binding = 3, std430) readonly buffer attn_inverse_4_block { float attn_inverse_4[]; };
layout(set = 0, binding = 4, std140) uniform Sizes { layout(offset = 0) int m; layout(offset = 4) int length_2; layout(offset = 8) int slots; layout(offset = 12) int tiles; layout(offset = 16) int weight_bytes; layout(offset = 20) int vector_elements; };
layout(push_constant) uniform Pushed { int layer; };
shared float acc[512];

// a * b + c, rounded once.
float fma_ir(float a, float b, float c) {
    precise float once = fma(a, b, c);
    return once;
}

// Of numbers that are not negative: that a sign might be there takes many steps.
int div_ir(int a, int b) { return int(uint(a) / uint(b)); }
int mod_ir(int a, int b) { return int(uint(a) % uint(b)); }

// e^x by the IR's own steps: n = rint(x / ln 2), a polynomial in x - n ln 2, 2^n.
float exp_ir(float x) {
    precise float held = max(min(x, 88.0), -87.0);
    precise float whole = roundEven(held * 1.4426950216293335);
    precise float r = fma_ir(whole, -0.693359375, held);
    r = fma_ir(whole, 0.00021219444170128554, r);
    precise float p = 0.00019875691214110702;
    p = fma_ir(p, r, 0.001398199936375022);
    p = fma_ir(p, r, 0.008333452045917511);
    p = fma_ir(p, r, 0.04166579619050026);
    p = fma_ir(p, r, 0.1666666567325592);
    p = fma_ir(p, r, 0.5);
    p = fma_ir(p, r, 1.0);
    p = fma_ir(p, r, 1.0);
    precise float scaled = p * intBitsToFloat((int(whole) + 127) << 23);
    return x < -87.0 ? 0.0 : scaled;
}

// Exact for the smallest halves too, which a device may flush to zero.
float half_value(uint bits) {
    float small = float(bits & 0x3ffu) * 5.960464477539063e-08;
    float large = unpackHalf2x16(bits & 0x7fffu).x;
    float magnitude = (bits & 0x7c00u) == 0u ? small : large;
    return (bits & 0x8000u) == 0u ? magnitude : -magnitude;
}

// The nearest half (ties to even), no larger than the largest, as a float.
float half_round(float x) {
    float size = min(abs(x), 65504.0);
    uint bits = floatBitsToUint(size);
    bits = (bits + 0xfffu + ((bits >> 13) & 1u)) & ~0x1fffu;
    precise float tiny = (size + 0.5) - 0.5;  // floats near 0.5 lie 2^-24 apart
    float nearest = size < 6.103515625e-05 ? tiny : uintBitsToFloat(bits);
    return floatBitsToInt(x) < 0 ? -nearest : nearest;
}

void main() {
    const int invocation = int(gl_LocalInvocationIndex);
    const int workgroup = int(gl_WorkGroupID.x);
    const int workgroups = int(gl_NumWorkGroups.x);
    [[dont_unroll]] for (int unit = div_ir(workgroup * (3), workgroups); unit < div_ir((workgroup + 1) * (3), workgroups); ++unit) {
        [[dont_unroll]] for (int row_tile = 0; row_tile < div_ir((m * 2) + 31, 32); ++row_tile) {
            [[dont_unroll]] for (int e = invocation; e < (min((m * 2) - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                precise float value = 0.0;
                acc[(i * 16) + j] = value;
            }
            controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
            if (div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) <= 1) {
                [[dont_unroll]] for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    precise float sum_0 = 0.0;
                    for (int k = 0; k < length_2 + m; ++k) {
                        float shared_2 = float(v_cache[((((((layer * 3) + unit) + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_0);
                    }
                    if (part < min((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                }
            }
            else if (div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) <= 2) {
                [[dont_unroll]] for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    precise float sum_0 = 0.0, sum_1 = 0.0;
                    for (int k = 0; k < length_2 + m; ++k) {
                        float shared_2 = float(v_cache[((((((layer * 3) + unit) + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_0);
                        sum_1 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(4 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(4 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_1);
                    }
                    if (part < min((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                    if ((4 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((4 + part) * 16) + j] = sum_1;
                }
            }
            else if (div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) <= 4) {
                [[dont_unroll]] for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    precise float sum_0 = 0.0, sum_1 = 0.0, sum_2 = 0.0, sum_3 = 0.0;
                    for (int k = 0; k < length_2 + m; ++k) {
                        float shared_2 = float(v_cache[((((((layer * 3) + unit) + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_0);
                        sum_1 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(4 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(4 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_1);
                        sum_2 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(8 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(8 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_2);
                        sum_3 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min((min(3, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min((min(3, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_3);
                    }
                    if (part < min((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                    if ((4 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((4 + part) * 16) + j] = sum_1;
                    if ((8 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((8 + part) * 16) + j] = sum_2;
                    if (3 < div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) && (12 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((12 + part) * 16) + j] = sum_3;
                }
            }
            else {
                [[dont_unroll]] for (int e = invocation; e < 4 * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int part = div_ir(e, 16);
                    precise float sum_0 = 0.0, sum_1 = 0.0, sum_2 = 0.0, sum_3 = 0.0, sum_4 = 0.0, sum_5 = 0.0, sum_6 = 0.0, sum_7 = 0.0;
                    for (int k = 0; k < length_2 + m; ++k) {
                        float shared_2 = float(v_cache[((((((layer * 3) + unit) + mod_ir(unit, 1)) * slots) + k) * 16) + j]);
                        sum_0 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_0);
                        sum_1 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(4 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(4 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_1);
                        sum_2 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(8 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(8 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_2);
                        sum_3 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(12 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(12 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_3);
                        sum_4 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min(16 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min(16 + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_4);
                        sum_5 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min((min(5, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min((min(5, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_5);
                        sum_6 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min((min(6, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min((min(6, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_6);
                        sum_7 = fma_ir(scores_6[(((((unit * 2) + div_ir((row_tile * 32) + min((min(7, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * m) + mod_ir((row_tile * 32) + min((min(7, div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) - 1) * 4) + part, min((m * 2) - (row_tile * 32), 32) - 1), m)) * slots) + k], shared_2, sum_7);
                    }
                    if (part < min((m * 2) - (row_tile * 32), 32)) acc[(part * 16) + j] = sum_0;
                    if ((4 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((4 + part) * 16) + j] = sum_1;
                    if ((8 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((8 + part) * 16) + j] = sum_2;
                    if ((12 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((12 + part) * 16) + j] = sum_3;
                    if ((16 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((16 + part) * 16) + j] = sum_4;
                    if (5 < div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) && (20 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((20 + part) * 16) + j] = sum_5;
                    if (6 < div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) && (24 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((24 + part) * 16) + j] = sum_6;
                    if (7 < div_ir(min((m * 2) - (row_tile * 32), 32) + 3, 4) && (28 + part) < min((m * 2) - (row_tile * 32), 32)) acc[((28 + part) * 16) + j] = sum_7;
                }
            }
            controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
            [[dont_unroll]] for (int e = invocation; e < (min((m * 2) - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                precise float value = acc[(i * 16) + j] * attn_inverse_4[(((unit * 2) + div_ir((row_tile * 32) + i, m)) * m) + mod_ir((row_tile * 32) + i, m)];
                attn_out_3[(mod_ir((row_tile * 32) + i, m) * 96) + ((((unit * 2) + div_ir((row_tile * 32) + i, m)) * 16) + ((mod_ir(unit, 1) * 16) + j))] = value;
            }
        }
    }
}
