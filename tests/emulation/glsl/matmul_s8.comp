#version 450
// c[m, n] = a[m, k] b[n, k]^T in 8x8x8 fragments, s8 x s8 -> s32, one subgroup a workgroup.
// Workgroup (x, y) owns columns 8x.. and rows 8y...
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types : require

layout(local_size_x_id = 0) in;
// 1 (column major) is right for b, whose k is contiguous; 0 reads the fragment transposed.
layout(constant_id = 1) const int B_LAYOUT = 1;

layout(set = 0, binding = 0) readonly buffer A { int8_t a[]; };
layout(set = 0, binding = 1) readonly buffer B { int8_t b[]; };
layout(set = 0, binding = 2) writeonly buffer C { int32_t c[]; };
layout(push_constant) uniform Sizes { uint n; uint k; };

void main() {
    uint row = gl_WorkGroupID.y * 8, col = gl_WorkGroupID.x * 8;
    coopmat<int32_t, gl_ScopeSubgroup, 8, 8, gl_MatrixUseAccumulator> acc =
        coopmat<int32_t, gl_ScopeSubgroup, 8, 8, gl_MatrixUseAccumulator>(0);
    for (uint at = 0; at < k; at += 8) {
        coopmat<int8_t, gl_ScopeSubgroup, 8, 8, gl_MatrixUseA> ma;
        coopmat<int8_t, gl_ScopeSubgroup, 8, 8, gl_MatrixUseB> mb;
        coopMatLoad(ma, a, row * k + at, k, gl_CooperativeMatrixLayoutRowMajor);
        coopMatLoad(mb, b, col * k + at, k, B_LAYOUT);
        acc = coopMatMulAdd(ma, mb, acc);
    }
    coopMatStore(acc, c, row * n + col, n, gl_CooperativeMatrixLayoutRowMajor);
}
