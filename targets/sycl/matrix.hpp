// Matrices of one sub-group: acc[M, N] += a[M, K] b[K, N]. With SPECCC_JOINT_MATRIX they are the
// device's (XMX); without it, lane l of any sub-group holds columns l, l + SUBGROUP, ... of each.
// A uint16_t is the bits of a bf16.
enum class Order { by_rows, by_columns };

template <class T> T* elements(T* p) { return p; }
#if SPECCC_JOINT_MATRIX
using syclex::bfloat16;
inline bfloat16* elements(uint16_t* p) { return reinterpret_cast<bfloat16*>(p); }
inline const bfloat16* elements(const uint16_t* p) { return reinterpret_cast<const bfloat16*>(p); }
#endif
template <class T> using Element = std::remove_pointer_t<decltype(elements((T*)nullptr))>;

template <class T> auto in_local(T* p) {
    namespace as = sycl::access;
    return sycl::address_space_cast<as::address_space::local_space, as::decorated::no>(elements(p));
}
template <class T> auto in_global(T* p) {
    namespace as = sycl::access;
    return sycl::address_space_cast<as::address_space::global_space, as::decorated::no>(elements(p));
}
inline sycl::sub_group lanes() { return syclex::this_work_item::get_sub_group(); }

#if SPECCC_JOINT_MATRIX
namespace mx = syclexp::matrix;
using Use = mx::use;
constexpr mx::layout layout_of(Order o) {
    return o == Order::by_rows ? mx::layout::row_major : mx::layout::col_major;
}
template <Use U, class T, int ROWS, int COLS, Order O>
using Matrix = mx::joint_matrix<sycl::sub_group, Element<T>, U, ROWS, COLS,
                                U == Use::accumulator ? mx::layout::dynamic : layout_of(O)>;

template <class Mat> void matrix_zero(Mat& m) { mx::joint_matrix_fill(lanes(), m, 0); }
template <Order O, class T, Use U, size_t R, size_t C, mx::layout L, class Ptr>
void matrix_load(mx::joint_matrix<sycl::sub_group, T, U, R, C, L>& m, Ptr p, int stride) {
    if constexpr (U == Use::accumulator) {
        mx::joint_matrix_load(lanes(), m, p, stride, layout_of(O));
    } else {
        mx::joint_matrix_load(lanes(), m, p, stride);
    }
}
template <Order O, class Mat, class Ptr> void matrix_store(Mat& m, Ptr p, int stride) {
    mx::joint_matrix_store(lanes(), m, p, stride, layout_of(O));
}
template <class C, class A, class B> void matrix_mad(C& acc, A& a, B& b) {
    mx::joint_matrix_mad(lanes(), acc, a, b, acc);
}
#else
enum class Use { a, b, accumulator };
inline int lane_id() {
    PER_LANE int id = int(lanes().get_local_linear_id());
    return id;
}
template <Use U, class T, int ROWS, int COLS, Order O> struct Matrix {
    static constexpr int rows = ROWS, cols = COLS, slots = (COLS + SUBGROUP - 1) / SUBGROUP;
    T own[ROWS][slots];

    // What a lane has beyond the last column is added up too: a sum must not overflow.
    Matrix() {
        if constexpr (COLS % SUBGROUP != 0)
            for (auto& row : own)
                for (T& x : row) x = 0;
    }

    // f(element, row, column) for each element of this lane that lies in the matrix.
    template <class F> void each(F f) {
        for (int r = 0; r < ROWS; ++r)
            for (int s = 0; s < slots; ++s)
                if (int c = s * SUBGROUP + lane_id(); c < COLS)
                    f(own[r][s], r, c);
    }
};
template <Order O> int place(int r, int c, int stride) {
    return O == Order::by_rows ? r * stride + c : c * stride + r;
}
template <class Mat> void matrix_zero(Mat& m) {
    m.each([](auto& x, int, int) { x = 0; });
}
template <Order O, class Mat, class Ptr> void matrix_load(Mat& m, Ptr p, int stride) {
    m.each([=](auto& x, int r, int c) { x = p[place<O>(r, c, stride)]; });
}
template <Order O, class Mat, class Ptr> void matrix_store(Mat& m, Ptr p, int stride) {
    m.each([=](auto& x, int r, int c) { p[place<O>(r, c, stride)] = x; });
}
template <class T> T number(T x) { return x; }
inline float number(uint16_t bits) { return sycl::bit_cast<float>(uint(bits) << 16); }
template <class T> T product_sum(T a, T b, T c) { return c + a * b; }
inline float product_sum(float a, float b, float c) { return sycl::fma(a, b, c); }
template <Use U, class T, int M, int N, Order O, class A, class B>
void matrix_mad(Matrix<U, T, M, N, O>& acc, A& a, B& b) {
#pragma clang loop unroll(disable)
    for (int k = 0; k < A::cols; ++k)
#pragma clang loop unroll(disable)
        for (int r = 0; r < M; ++r) {
            T x = sycl::group_broadcast(lanes(), T(number(a.own[r][k / SUBGROUP])), k % SUBGROUP);
            for (int s = 0; s < B::slots; ++s)
                acc.own[r][s] = product_sum(x, T(number(b.own[k][s])), acc.own[r][s]);
        }
}
#endif
