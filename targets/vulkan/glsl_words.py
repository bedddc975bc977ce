"""Words of GLSL that no object of a text may be called (GLSL 4.60, 3.6, and its extensions')."""

from __future__ import annotations

from itertools import product

_WORDS = """
    const uniform buffer shared attribute varying coherent volatile restrict readonly writeonly
    atomic_uint layout centroid flat smooth noperspective patch sample invariant precise break
    continue do for while switch case default if else subroutine in out inout int void bool true
    false float double uint discard return lowp mediump highp precision struct common partition
    active asm class union enum typedef template this resource goto inline noinline public static
    extern external interface long short half fixed unsigned superp input output filter sizeof cast
    namespace using sampler texture subpassInput nonuniformEXT demote
    int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t uint64_t float16_t float32_t float64_t
    coopmat coopMatLoad coopMatStore coopMatMulAdd dotPacked4x8EXT
    min max abs exp fma sqrt round roundEven select mix step length row packed image main barrier
"""
_VECTORS = {a + b for a, b in product(("", "i", "u", "b", "d", "h", "f"), ("vec2", "vec3", "vec4"))}
_SIDES = ("2", "3", "4", *(f"{n}x{m}" for n, m in product("234", "234")))
_MATRICES = {f"{kind}mat{side}" for kind, side in product(("", "d"), _SIDES)}
_SHAPES = """
    1D 2D 3D 1DShadow 2DShadow 1DArray 2DArray 1DArrayShadow 2DArrayShadow 2DRect 2DRectShadow
    3DRect Buffer 2DMS 2DMSArray Cube CubeShadow CubeArray CubeArrayShadow
"""
_KINDS = ("sampler", "image", "texture", "isampler", "iimage", "itexture", "usampler", "uimage")
_IMAGES = {kind + shape for kind, shape in product((*_KINDS, "utexture"), _SHAPES.split())}
RESERVED = frozenset(_WORDS.split()) | _VECTORS | _MATRICES | _IMAGES
"""Keywords, types, what the specification keeps for later, and functions that our texts call."""
