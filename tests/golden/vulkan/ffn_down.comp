#version 450
// ffn_down for Vulkan, i8*i8->i32 16x16x16, 2 subgroups of 32.
// sha256 of what follows: 7c8631b10b1765d0
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_integer_dot_product : require
#extension GL_KHR_shader_subgroup_shuffle : require

layout(local_size_x = 64) in;
const int INVOCATIONS = 64;
const int SUBGROUPS = 2;
const int M = 16, N = 16, K = 16;

layout(set = 0, binding = 0, std430) readonly buffer weights_block { uint8_t weights[]; };
layout(set = 0, binding = 0, std430) readonly buffer weights_by_4_block { uint weights_by_4[]; };
layout(set = 0, binding = 0, std430) readonly buffer weights_by_2_block { uint16_t weights_by_2[]; };
layout(set = 0, binding = 1, std430) buffer token_embd_1_block { float token_embd_1[]; };
layout(set = 0, binding = 2, std430) readonly buffer attn_output_5_block { float attn_output_5[]; };
layout(set = 0, binding = 3, std430) readonly buffer ffn_gate_up_6_block { float ffn_gate_up_6[]; };
layout(set = 0, binding = 4, std430) buffer xq_block { int8_t xq[]; };
layout(set = 0, binding = 5, std430) buffer xs_block { float xs[]; };
layout(set = 0, binding = 6, std430) buffer xi_block { int xi[]; };
layout(set = 0, binding = 7, std430) buffer xm_block { float xm[]; };
layout(set = 0, binding = 8, std430) buffer amax_block { float amax[]; };
layout(set = 0, binding = 9, std430) buffer inverse_block { float inverse[]; };
layout(set = 0, binding = 10, std140) uniform Sizes { layout(offset = 0) int m; layout(offset = 4) int length_2; layout(offset = 8) int slots; layout(offset = 12) int tiles; layout(offset = 16) int weight_bytes; layout(offset = 20) int vector_elements; };
layout(push_constant) uniform Pushed { int layer; };
shared int8_t x_tile[1024];
shared int8_t w_tile[512];
shared int dots[512];
shared int x_words[512];
shared int lane_dots[1024];
shared float partial[128];
shared int partial_2[128];
shared float acc0[512];

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
    [[dont_unroll]] for (int r = 0; r < m; ++r) {
        [[dont_unroll]] for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
            int lane_2 = mod_ir(e, 16);
            int b = div_ir(e, 16);
            precise float total = uintBitsToFloat(0xff800000u);
            for (int step_2 = 0; step_2 < div_ir(47 - lane_2, 16); ++step_2) {
                total = max(total, abs(ffn_gate_up_6[(r * 160) + ((b * 32) + ((step_2 * 16) + lane_2))]));
            }
            partial[(b * 16) + lane_2] = total;
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        [[dont_unroll]] for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            precise float value = max(max(max(max(partial[b * 16], partial[(b * 16) + 8]), max(partial[(b * 16) + 4], partial[(b * 16) + 12])), max(max(partial[(b * 16) + 2], partial[(b * 16) + 10]), max(partial[(b * 16) + 6], partial[(b * 16) + 14]))), max(max(max(partial[(b * 16) + 1], partial[(b * 16) + 9]), max(partial[(b * 16) + 5], partial[(b * 16) + 13])), max(max(partial[(b * 16) + 3], partial[(b * 16) + 11]), max(partial[(b * 16) + 7], partial[(b * 16) + 15]))));
            amax[workgroup * (5) + b] = value;
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        [[dont_unroll]] for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            precise float value = amax[workgroup * (5) + b] / 127.0;
            xs[workgroup * (m * 5) + (r * 5) + b] = value;
        }
        [[dont_unroll]] for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            precise float value = (0.0 < amax[workgroup * (5) + b]) ? (127.0 / amax[workgroup * (5) + b]) : 0.0;
            inverse[workgroup * (5) + b] = value;
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        [[dont_unroll]] for (int e = invocation; e < 5 * 32; e += INVOCATIONS) {
            int t = mod_ir(e, 32);
            int b = div_ir(e, 32);
            precise int8_t value = int8_t(int(roundEven(ffn_gate_up_6[(r * 160) + ((b * 32) + t)] * inverse[workgroup * (5) + b])));
            xq[workgroup * (m * 160) + (r * 160) + ((b * 32) + t)] = value;
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        [[dont_unroll]] for (int e = invocation; e < 5 * 16; e += INVOCATIONS) {
            int lane_2 = mod_ir(e, 16);
            int b = div_ir(e, 16);
            precise int total = 0;
            for (int step_2 = 0; step_2 < div_ir(47 - lane_2, 16); ++step_2) {
                total = total + int(xq[workgroup * (m * 160) + (r * 160) + ((b * 32) + ((step_2 * 16) + lane_2))]);
            }
            partial_2[(b * 16) + lane_2] = total;
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        [[dont_unroll]] for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            precise int value = (((partial_2[b * 16] + partial_2[(b * 16) + 8]) + (partial_2[(b * 16) + 4] + partial_2[(b * 16) + 12])) + ((partial_2[(b * 16) + 2] + partial_2[(b * 16) + 10]) + (partial_2[(b * 16) + 6] + partial_2[(b * 16) + 14]))) + (((partial_2[(b * 16) + 1] + partial_2[(b * 16) + 9]) + (partial_2[(b * 16) + 5] + partial_2[(b * 16) + 13])) + ((partial_2[(b * 16) + 3] + partial_2[(b * 16) + 11]) + (partial_2[(b * 16) + 7] + partial_2[(b * 16) + 15])));
            xi[workgroup * (m * 5) + (r * 5) + b] = value;
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        [[dont_unroll]] for (int e = invocation; e < 5; e += INVOCATIONS) {
            int b = e;
            precise float value = xs[workgroup * (m * 5) + (r * 5) + b] * float(xi[workgroup * (m * 5) + (r * 5) + b]);
            xm[workgroup * (m * 5) + (r * 5) + b] = value;
        }
    }
    [[dont_unroll]] for (int panel = div_ir(workgroup * (6), workgroups); panel < div_ir((workgroup + 1) * (6), workgroups); ++panel) {
        [[dont_unroll]] for (int row_tile = 0; row_tile < div_ir(m + 31, 32); ++row_tile) {
            [[dont_unroll]] for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                precise float value = 0.0;
                acc0[(i * 16) + j] = value;
            }
            [[dont_unroll]] for (int few = 0; few < min(div_ir(8, min(m - (row_tile * 32), 32)), 1); ++few) {
                [[dont_unroll]] for (int chunk = 0; chunk < 1; ++chunk) {
                    [[dont_unroll]] for (int e = invocation; e < 5 * (min(m - (row_tile * 32), 32)) * 8; e += INVOCATIONS) {
                        int q = mod_ir(e, 8);
                        int i = mod_ir(div_ir(e, 8), (min(m - (row_tile * 32), 32)));
                        int u = div_ir(div_ir(e, 8), (min(m - (row_tile * 32), 32)));
                        precise int value = (((int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + ((((chunk * 5) + u) * 32) + (q * 4))]) & 255) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 1)]) & 255) << uint(8)))) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 2)]) & 255) << uint(16)))) | (int(uint(int(xq[workgroup * (m * 160) + (((row_tile * 32) + i) * 160) + (((((chunk * 5) + u) * 32) + (q * 4)) + 3)])) << uint(24)));
                        x_words[(((u * 8) + i) * 8) + q] = value;
                    }
                    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
                    if (min(m - (row_tile * 32), 32) <= 1) {
                        [[dont_unroll]] for (int first = 0; first < 5 * 16; first += 32) {
                            int at = first + int(gl_SubgroupID) * 16 + mod_ir(int(gl_SubgroupInvocationID), 16);
                            int e = min(at, 5 * 16 - 1);
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            precise int sum_0 = 0;
                            for (int turn = 0; turn < 2; ++turn) {
                                int q = div_ir(int(gl_SubgroupInvocationID), 16) + turn * 2;
                                int codes = int(weights_by_4[div_ir(((((layer * 9600) + 100736) + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)), 4)]);
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dotPacked4x8EXT(x_words[((v * 8) * 8) + q], low) + dotPacked4x8EXT(x_words[((v * 8) * 8) + (q + 4)], high));
                            }
                            sum_0 = sum_0 + subgroupShuffleXor(sum_0, 16u);
                            if (at < 5 * 16 && int(gl_SubgroupInvocationID) < 16) {
                                lane_dots[((v * 8) * 16) + j] = sum_0;
                            }
                        }
                    }
                    else if (min(m - (row_tile * 32), 32) <= 2) {
                        [[dont_unroll]] for (int first = 0; first < 5 * 16; first += 32) {
                            int at = first + int(gl_SubgroupID) * 16 + mod_ir(int(gl_SubgroupInvocationID), 16);
                            int e = min(at, 5 * 16 - 1);
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            precise int sum_0 = 0, sum_1 = 0;
                            for (int turn = 0; turn < 2; ++turn) {
                                int q = div_ir(int(gl_SubgroupInvocationID), 16) + turn * 2;
                                int codes = int(weights_by_4[div_ir(((((layer * 9600) + 100736) + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)), 4)]);
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dotPacked4x8EXT(x_words[((v * 8) * 8) + q], low) + dotPacked4x8EXT(x_words[((v * 8) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dotPacked4x8EXT(x_words[(((v * 8) + 1) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + 1) * 8) + (q + 4)], high));
                            }
                            sum_0 = sum_0 + subgroupShuffleXor(sum_0, 16u);
                            sum_1 = sum_1 + subgroupShuffleXor(sum_1, 16u);
                            if (at < 5 * 16 && int(gl_SubgroupInvocationID) < 16) {
                                lane_dots[((v * 8) * 16) + j] = sum_0;
                                lane_dots[(((v * 8) + 1) * 16) + j] = sum_1;
                            }
                        }
                    }
                    else if (min(m - (row_tile * 32), 32) <= 4) {
                        [[dont_unroll]] for (int first = 0; first < 5 * 16; first += 32) {
                            int at = first + int(gl_SubgroupID) * 16 + mod_ir(int(gl_SubgroupInvocationID), 16);
                            int e = min(at, 5 * 16 - 1);
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            precise int sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0;
                            for (int turn = 0; turn < 2; ++turn) {
                                int q = div_ir(int(gl_SubgroupInvocationID), 16) + turn * 2;
                                int codes = int(weights_by_4[div_ir(((((layer * 9600) + 100736) + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)), 4)]);
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dotPacked4x8EXT(x_words[((v * 8) * 8) + q], low) + dotPacked4x8EXT(x_words[((v * 8) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dotPacked4x8EXT(x_words[(((v * 8) + 1) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + 1) * 8) + (q + 4)], high));
                                sum_2 = sum_2 + (dotPacked4x8EXT(x_words[(((v * 8) + 2) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + 2) * 8) + (q + 4)], high));
                                sum_3 = sum_3 + (dotPacked4x8EXT(x_words[(((v * 8) + min(3, min(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + min(3, min(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                            }
                            sum_0 = sum_0 + subgroupShuffleXor(sum_0, 16u);
                            sum_1 = sum_1 + subgroupShuffleXor(sum_1, 16u);
                            sum_2 = sum_2 + subgroupShuffleXor(sum_2, 16u);
                            sum_3 = sum_3 + subgroupShuffleXor(sum_3, 16u);
                            if (at < 5 * 16 && int(gl_SubgroupInvocationID) < 16) {
                                lane_dots[((v * 8) * 16) + j] = sum_0;
                                lane_dots[(((v * 8) + 1) * 16) + j] = sum_1;
                                lane_dots[(((v * 8) + 2) * 16) + j] = sum_2;
                                if (3 < min(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 3) * 16) + j] = sum_3;
                            }
                        }
                    }
                    else {
                        [[dont_unroll]] for (int first = 0; first < 5 * 16; first += 32) {
                            int at = first + int(gl_SubgroupID) * 16 + mod_ir(int(gl_SubgroupInvocationID), 16);
                            int e = min(at, 5 * 16 - 1);
                            int j = mod_ir(e, 16);
                            int v = div_ir(e, 16);
                            precise int sum_0 = 0, sum_1 = 0, sum_2 = 0, sum_3 = 0, sum_4 = 0, sum_5 = 0, sum_6 = 0, sum_7 = 0;
                            for (int turn = 0; turn < 2; ++turn) {
                                int q = div_ir(int(gl_SubgroupInvocationID), 16) + turn * 2;
                                int codes = int(weights_by_4[div_ir(((((layer * 9600) + 100736) + (panel * 1600)) + (((chunk * 5) + v) * 320)) + ((q * 64) + (j * 4)), 4)]);
                                int low = codes & 252645135;
                                int high = (int(uint(codes) >> uint(4))) & 252645135;
                                sum_0 = sum_0 + (dotPacked4x8EXT(x_words[((v * 8) * 8) + q], low) + dotPacked4x8EXT(x_words[((v * 8) * 8) + (q + 4)], high));
                                sum_1 = sum_1 + (dotPacked4x8EXT(x_words[(((v * 8) + 1) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + 1) * 8) + (q + 4)], high));
                                sum_2 = sum_2 + (dotPacked4x8EXT(x_words[(((v * 8) + 2) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + 2) * 8) + (q + 4)], high));
                                sum_3 = sum_3 + (dotPacked4x8EXT(x_words[(((v * 8) + 3) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + 3) * 8) + (q + 4)], high));
                                sum_4 = sum_4 + (dotPacked4x8EXT(x_words[(((v * 8) + 4) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + 4) * 8) + (q + 4)], high));
                                sum_5 = sum_5 + (dotPacked4x8EXT(x_words[(((v * 8) + min(5, min(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + min(5, min(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                                sum_6 = sum_6 + (dotPacked4x8EXT(x_words[(((v * 8) + min(6, min(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + min(6, min(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                                sum_7 = sum_7 + (dotPacked4x8EXT(x_words[(((v * 8) + min(7, min(m - (row_tile * 32), 32) - 1)) * 8) + q], low) + dotPacked4x8EXT(x_words[(((v * 8) + min(7, min(m - (row_tile * 32), 32) - 1)) * 8) + (q + 4)], high));
                            }
                            sum_0 = sum_0 + subgroupShuffleXor(sum_0, 16u);
                            sum_1 = sum_1 + subgroupShuffleXor(sum_1, 16u);
                            sum_2 = sum_2 + subgroupShuffleXor(sum_2, 16u);
                            sum_3 = sum_3 + subgroupShuffleXor(sum_3, 16u);
                            sum_4 = sum_4 + subgroupShuffleXor(sum_4, 16u);
                            sum_5 = sum_5 + subgroupShuffleXor(sum_5, 16u);
                            sum_6 = sum_6 + subgroupShuffleXor(sum_6, 16u);
                            sum_7 = sum_7 + subgroupShuffleXor(sum_7, 16u);
                            if (at < 5 * 16 && int(gl_SubgroupInvocationID) < 16) {
                                lane_dots[((v * 8) * 16) + j] = sum_0;
                                lane_dots[(((v * 8) + 1) * 16) + j] = sum_1;
                                lane_dots[(((v * 8) + 2) * 16) + j] = sum_2;
                                lane_dots[(((v * 8) + 3) * 16) + j] = sum_3;
                                lane_dots[(((v * 8) + 4) * 16) + j] = sum_4;
                                if (5 < min(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 5) * 16) + j] = sum_5;
                                if (6 < min(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 6) * 16) + j] = sum_6;
                                if (7 < min(m - (row_tile * 32), 32)) lane_dots[(((v * 8) + 7) * 16) + j] = sum_7;
                            }
                        }
                    }
                    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
                    [[dont_unroll]] for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                        int j = mod_ir(e, 16);
                        int i = div_ir(e, 16);
                        precise float sum = acc0[(i * 16) + j];
                        for (int v = 0; v < 5; ++v) {
                            sum = fma_ir(half_value(uint(weights_by_2[div_ir((((((layer * 9600) + 100736) + (panel * 1600)) + (((chunk * 5) + v) * 320)) + 288) + (j * 2), 2)])), xm[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + ((chunk * 5) + v)], fma_ir(float(lane_dots[(((v * 8) + i) * 16) + j]), xs[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + ((chunk * 5) + v)] * half_value(uint(weights_by_2[div_ir((((((layer * 9600) + 100736) + (panel * 1600)) + (((chunk * 5) + v) * 320)) + 256) + (j * 2), 2)])), sum));
                        }
                        acc0[(i * 16) + j] = sum;
                    }
                }
            }
            [[dont_unroll]] for (int many = min(div_ir(8, min(m - (row_tile * 32), 32)), 1); many < 1; ++many) {
                [[dont_unroll]] for (int b = 0; b < 5; ++b) {
                    [[dont_unroll]] for (int e = invocation; e < 16 * 32; e += INVOCATIONS) {
                        int t = mod_ir(e, 32);
                        int j = div_ir(e, 32);
                        precise int8_t value = int8_t((int(uint(int(weights[((((layer * 9600) + 100736) + (panel * 1600)) + (b * 320)) + ((mod_ir(div_ir(t, 4), 4) * 64) + ((j * 4) + mod_ir(t, 4)))])) >> uint(int(div_ir(div_ir(t, 4), 4) * 4)))) & 15);
                        w_tile[(j * 32) + t] = value;
                    }
                    [[dont_unroll]] for (int e = invocation; e < (div_ir(min(m - (row_tile * 32), 32) + 15, 16) * 16) * 32; e += INVOCATIONS) {
                        int t = mod_ir(e, 32);
                        int i = div_ir(e, 32);
                        precise int8_t value = (i < min(m - (row_tile * 32), 32)) ? xq[workgroup * (m * 160) + (((row_tile * 32) + min(i, min(m - (row_tile * 32), 32) - 1)) * 160) + ((b * 32) + t)] : int8_t(0);
                        x_tile[(i * 32) + t] = value;
                    }
                    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
                    [[dont_unroll]] for (int part = int(gl_SubgroupID); part < div_ir(min(m - (row_tile * 32), 32) + 15, 16); part += SUBGROUPS) {
                        coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> frag_c;
                        frag_c = coopmat<int, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0);
                        coopmat<int8_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> frag_a;
                        coopMatLoad(frag_a, x_tile, (part * 16) * 32, 32, gl_CooperativeMatrixLayoutRowMajor);
                        coopmat<int8_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> frag_b;
                        coopMatLoad(frag_b, w_tile, 0, 32, gl_CooperativeMatrixLayoutColumnMajor);
                        frag_c = coopMatMulAdd(frag_a, frag_b, frag_c);
                        coopMatLoad(frag_a, x_tile, ((part * 16) * 32) + 16, 32, gl_CooperativeMatrixLayoutRowMajor);
                        coopMatLoad(frag_b, w_tile, 16, 32, gl_CooperativeMatrixLayoutColumnMajor);
                        frag_c = coopMatMulAdd(frag_a, frag_b, frag_c);
                        coopMatStore(frag_c, dots, (part * 16) * 16, 16, gl_CooperativeMatrixLayoutRowMajor);
                    }
                    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
                    [[dont_unroll]] for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                        int j = mod_ir(e, 16);
                        int i = div_ir(e, 16);
                        precise float value = fma_ir(half_value(uint(weights_by_2[div_ir((((((layer * 9600) + 100736) + (panel * 1600)) + (b * 320)) + 288) + (j * 2), 2)])), xm[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + b], fma_ir(float(dots[(i * 16) + j]), xs[workgroup * (m * 5) + (((row_tile * 32) + i) * 5) + b] * half_value(uint(weights_by_2[div_ir((((((layer * 9600) + 100736) + (panel * 1600)) + (b * 320)) + 256) + (j * 2), 2)])), acc0[(i * 16) + j]));
                        acc0[(i * 16) + j] = value;
                    }
                }
            }
            controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
            [[dont_unroll]] for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int j = mod_ir(e, 16);
                int i = div_ir(e, 16);
                precise float value = attn_output_5[(((row_tile * 32) + i) * 96) + ((panel * 16) + j)] + acc0[(i * 16) + j];
                token_embd_1[(((row_tile * 32) + i) * 96) + ((panel * 16) + j)] = value;
            }
        }
    }
}
