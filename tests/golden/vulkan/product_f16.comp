#version 450
// product for Vulkan, f16*f16->f32 8x8x8, 2 subgroups of 8.
// sha256 of what follows: 0e18682f09b59683
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_16bit_storage : require

layout(local_size_x = 16) in;
const int INVOCATIONS = 16;
const int SUBGROUPS = 2;
const int M = 8, N = 8, K = 8;

layout(set = 0, binding = 0, std430) readonly buffer x_block { float x[]; };
layout(set = 0, binding = 1, std430) readonly buffer w_block { uint8_t w[]; };
layout(set = 0, binding = 1, std430) readonly buffer w_by_2_block { uint16_t w_by_2[]; };
layout(set = 0, binding = 2, std430) buffer y_block { float y[]; };
layout(push_constant) uniform Sizes { int m; };
shared float16_t x_floats[2048];
shared float16_t w_floats[1024];
shared float float_sums[512];
shared float acc[512];

// a + b = x + y exactly, x the rounded sum (Knuth).
vec2 two_sum(float a, float b) {
    precise float sum = a + b;
    precise float b_part = sum - a;
    precise float error = (a - (sum - b_part)) + (b - b_part);
    return vec2(sum, error);
}

// a * b = x + y exactly (Dekker; 4097 = 2^12 + 1 halves a significand).
vec2 two_product(float a, float b) {
    precise float a_wide = a * 4097.0;
    precise float a_high = a_wide - (a_wide - a);
    precise float a_low = a - a_high;
    precise float b_wide = b * 4097.0;
    precise float b_high = b_wide - (b_wide - b);
    precise float b_low = b - b_high;
    precise float product = a * b;
    precise float partial = ((a_high * b_high - product) + a_high * b_low) + a_low * b_high;
    precise float error = partial + a_low * b_low;
    return vec2(product, error);
}

// a * b + c, rounded once: the low parts are rounded to odd (Boldo and Melquiond 2008).
float fma_ir(float a, float b, float c) {
    precise float plain = a * b + c;
    vec2 product = two_product(a, b);
    vec2 low = two_sum(c, product.y);
    vec2 high = two_sum(product.x, low.x);
    vec2 rest = two_sum(low.y, high.y);
    int bits = floatBitsToInt(rest.x);
    if (rest.y != 0.0 && (bits & 1) == 0) {
        bits += (rest.y > 0.0) == (rest.x > 0.0) ? 1 : -1;
    }
    precise float once = high.x + intBitsToFloat(bits);
    float largest = max(max(abs(a), abs(b)), max(abs(c), abs(product.x)));
    return largest < 1e30 ? once : plain;  // beyond it the steps above overflow: rounded twice
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
    [[dont_unroll]] for (int panel = div_ir(workgroup * (2), workgroups); panel < div_ir((workgroup + 1) * (2), workgroups); ++panel) {
        [[dont_unroll]] for (int row_tile = 0; row_tile < div_ir(m + 31, 32); ++row_tile) {
            [[dont_unroll]] for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int v = mod_ir(e, 16);
                int u = div_ir(e, 16);
                precise float value = 0.0;
                acc[(u * 16) + v] = value;
            }
            [[dont_unroll]] for (int chunk = 0; chunk < 2; ++chunk) {
                [[dont_unroll]] for (int e = invocation; e < (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8) * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int t = div_ir(e, 16);
                    precise float16_t value = (t < min(100 - (chunk * 64), 64)) ? float16_t(half_value(uint(w_by_2[div_ir((panel * 3200) + (((((chunk * 64) + min(t, min(100 - (chunk * 64), 64) - 1)) * 16) + j) * 2), 2)]))) : float16_t(0.0);
                    w_floats[(t * 16) + j] = value;
                }
                [[dont_unroll]] for (int e = invocation; e < (div_ir(min(m - (row_tile * 32), 32) + 7, 8) * 8) * (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8); e += INVOCATIONS) {
                    int t = mod_ir(e, (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8));
                    int i = div_ir(e, (div_ir(min(100 - (chunk * 64), 64) + 7, 8) * 8));
                    precise float16_t value = (i < min(m - (row_tile * 32), 32)) ? ((t < min(100 - (chunk * 64), 64)) ? float16_t(half_round(x[(((row_tile * 32) + min(i, min(m - (row_tile * 32), 32) - 1)) * 100) + ((chunk * 64) + min(t, min(100 - (chunk * 64), 64) - 1))])) : float16_t(0.0)) : float16_t(0.0);
                    x_floats[(i * 64) + t] = value;
                }
                controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
                [[dont_unroll]] for (int part = int(gl_SubgroupID); part < div_ir(min(m - (row_tile * 32), 32) + 7, 8) * 2; part += SUBGROUPS) {
                    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> frag_c;
                    frag_c = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0);
                    [[dont_unroll]] for (int step_2 = 0; step_2 < div_ir(min(100 - (chunk * 64), 64) + 7, 8); ++step_2) {
                        coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> frag_a;
                        coopMatLoad(frag_a, x_floats, ((div_ir(part, 2) * 8) * 64) + (step_2 * 8), 64, gl_CooperativeMatrixLayoutRowMajor);
                        coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> frag_b;
                        coopMatLoad(frag_b, w_floats, ((step_2 * 8) * 16) + (mod_ir(part, 2) * 8), 16, gl_CooperativeMatrixLayoutRowMajor);
                        frag_c = coopMatMulAdd(frag_a, frag_b, frag_c);
                    }
                    coopMatStore(frag_c, float_sums, ((div_ir(part, 2) * 8) * 16) + (mod_ir(part, 2) * 8), 16, gl_CooperativeMatrixLayoutRowMajor);
                }
                controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
                [[dont_unroll]] for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                    int j = mod_ir(e, 16);
                    int i = div_ir(e, 16);
                    precise float value = acc[(i * 16) + j] + float_sums[(i * 16) + j];
                    acc[(i * 16) + j] = value;
                }
            }
            controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsShared | gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
            [[dont_unroll]] for (int e = invocation; e < (min(m - (row_tile * 32), 32)) * 16; e += INVOCATIONS) {
                int s = mod_ir(e, 16);
                int r = div_ir(e, 16);
                precise float value = acc[(r * 16) + s];
                y[(((row_tile * 32) + r) * 32) + ((panel * 16) + s)] = value;
            }
        }
    }
}
