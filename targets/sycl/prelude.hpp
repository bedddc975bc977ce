// a * b + c, rounded once.
inline float fma_ir(float a, float b, float c) { return sycl::fma(a, b, c); }

// The smaller and the larger; of a NaN and a number, the NaN.
template <class T> T min_ir(T a, T b) { return a <= b || a != a ? a : b; }
template <class T> T max_ir(T a, T b) { return a >= b || a != a ? a : b; }

// A number out of bytes wherever they lie; the host and the device are little-endian.
template <class T, class Byte> T bytes_at(const Byte* p, int at) {
    T value;
    __builtin_memcpy(&value, p + at, sizeof(T));
    return value;
}
