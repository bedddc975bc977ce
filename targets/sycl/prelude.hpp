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
