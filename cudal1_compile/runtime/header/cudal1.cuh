// cudal1.cuh: what a generated kernel may use, with one meaning on every GPU and on the host target.
//
// Compiled by NVRTC without any include, and by g++ after host.h (which defines CUDAL1_HOST).
// A change of a name or of a meaning costs a retrained model: add, do not change.
//
// EVERYTHING A GENERATOR MAY CALL
//   types        f32 f16 bf16 f64 i64 i32 i16 i8 u8 bool (f16 and bf16 are 2-byte structs without arithmetic)
//   constants    INFINITY NAN, lowest<T>() highest<T>() (-inf/inf, or the limits of an integer type), cdiv(a, b)
//   memory       ld(p) st(p, v)   vload<V>(p, v) vstore<V>(p, v)   round_to<T>(x)
//                vload<V>(p, from, to, v) vstore<V>(p, from, to, v): of V elements those in [from, to), p not aligned
//                vstore<V>(p, v, inside): nothing where that is false, without a branch: what a thread reads for its
//                next vectors is then on its way already; p in global memory
//                compute<T>: the compute type of T (float, double, int, long long, bool)
//                atomic_add(p, v) atomic_max(p, v) atomic_min(p, v) on float, double, int, long long (NaN wins)
//   indices      lane_id() warp_id() thread_id() block_threads(): of this thread in its block, in linear order
//   warp         warp_sum warp_prod warp_max warp_min (x) -> every lane; warp_all warp_any (bool)
//                warp_argmax(v, i) warp_argmin(v, i): by reference, first of equals, NaN wins
//                join_argmax(v, i, w, j) join_argmin(v, i, w, j): takes w and j into v and i where they win
//                warp_scan_sum(x) warp_scan_prod(x): inclusive
//   block        block_sum block_prod block_max block_min block_all block_any block_argmax block_argmin
//                block_scan_sum block_scan_prod (x), and (x, total) which also gives the block's total
//                (q, carry): of an array q[C] or q[C][V] of each thread, see scan.cuh; also thread_ and tile_, tile_sum
//                every thread of the block must call them; the block size must be a multiple of 32
//   blocks       wait_for_blocks(count, n): until n blocks have called it with this counter, an i32 of scratch that the
//                launch sets to 0; then each sees what the others had stored. All threads call it, at most 64 blocks,
//                neighbours in the grid: they must have room on the device at once. A counter is for one wait
//   pointwise    maximum minimum (NaN wins) relu sigmoid sign reciprocal round_even remainder_ int_pow finite_or_zero
//                for the rest C's own: expf exp2f expm1f logf log2f log1pf sqrtf rsqrtf sinf cosf tanhf erff
//                floorf ceilf truncf fabsf powf fmodf fmaf isnan, and exp, log, ... for double; min, max, abs
//                (round is half to even: round_even, not roundf; remainder takes the divisor's sign: remainder_)
//   CUDA itself  __syncthreads* __syncwarp __shfl*_sync __ballot_sync __any_sync __all_sync __activemask
//                atomicAdd ..., __ldg, __popc, __clz, __ffs, __float_as_int ..., float2/float4/int4/..., __threadfence
#pragma once

typedef float f32;
typedef double f64;
typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned char u8;
struct __align__(2) f16 { unsigned short bits; };
struct __align__(2) bf16 { unsigned short bits; };

#ifndef CUDAL1_HOST
#undef INFINITY
#undef NAN
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
#endif

#define CUDAL1_FN __device__ __forceinline__
// On the host target every collective knows the candidate's line, so that two different ones do not pass as one.
#ifdef CUDAL1_HOST
struct Cudal1Line {
  int number;
  constexpr operator int() const { return number; }
};
#define CUDAL1_FROM , Cudal1Line line = {__builtin_LINE()}  // in a parameter list
#define CUDAL1_LINE_ONLY line  // as the only argument, or after others:
#define CUDAL1_AT , line
#define CUDAL1_SHUFFLE_AT , 32, line
#else
#define CUDAL1_FROM
#define CUDAL1_LINE_ONLY
#define CUDAL1_AT
#define CUDAL1_SHUFFLE_AT
#endif
#ifdef CUDAL1_HOST
#define CUDAL1_ATOMIC_READ(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#else
#define CUDAL1_ATOMIC_READ(p) (*(volatile Bits*)(p))
#endif

template <class A, class B> __host__ __device__ constexpr auto cdiv(A a, B b) { return (a + b - 1) / b; }

// ---------------------------------------------------------------- compute types and conversions
namespace cudal1 {
template <class T> struct Compute { typedef T type; };
template <> struct Compute<f16> { typedef float type; };
template <> struct Compute<bf16> { typedef float type; };
template <> struct Compute<i16> { typedef int type; };
template <> struct Compute<i8> { typedef int type; };
template <> struct Compute<u8> { typedef int type; };

#ifdef CUDAL1_HOST
CUDAL1_FN float widen(f16 x) {
  unsigned sign = (unsigned)(x.bits & 0x8000) << 16, exponent = x.bits >> 10 & 31, mantissa = x.bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
  float small = (float)mantissa * 5.9604644775390625e-08f;  // 2^-24
  return sign ? -small : small;
}
CUDAL1_FN unsigned short f16_bits(float x) {
  unsigned u = __float_as_uint(x), sign = u >> 16 & 0x8000;
  u &= 0x7fffffff;
  if (u > 0x7f800000) return (unsigned short)(sign | 0x7fff);
  if (u >= 0x477ff000) return (unsigned short)(sign | 0x7c00);  // 65520 and more round to infinity
  if (u < 0x38800000)                                            // below 2^-14: steps of 2^-24, as those of 0.5f
    return (unsigned short)(sign | (__float_as_uint(__uint_as_float(u) + 0.5f) - 0x3f000000));
  u -= 0x38000000;
  return (unsigned short)(sign | (u + 0xfff + (u >> 13 & 1)) >> 13);
}
CUDAL1_FN unsigned short bf16_bits(float x) {
  unsigned u = __float_as_uint(x);
  if ((u & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#else
CUDAL1_FN float widen(f16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
CUDAL1_FN unsigned short f16_bits(float x) {
  unsigned short r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
CUDAL1_FN unsigned short bf16_bits(float x) {
  unsigned short r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x));
  return r;
}
#endif
CUDAL1_FN float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }
template <class T> CUDAL1_FN typename Compute<T>::type widen(T x) { return x; }

template <class T> struct Narrow {
  template <class V> static CUDAL1_FN T from(V v) { return (T)v; }
};
template <> struct Narrow<f16> {
  template <class V> static CUDAL1_FN f16 from(V v) { f16 r = {f16_bits((float)v)}; return r; }
  static CUDAL1_FN f16 from(f16 v) { return v; }
};
template <> struct Narrow<bf16> {
  template <class V> static CUDAL1_FN bf16 from(V v) { bf16 r = {bf16_bits((float)v)}; return r; }
  static CUDAL1_FN bf16 from(bf16 v) { return v; }
};
}  // namespace cudal1

// What source.py asserts of every launch: its arguments are as many pointers, then 4-byte sizes.
namespace cudal1 {
template <class T> struct IsPointer {
  enum { yes = 0 };
};
template <class T> struct IsPointer<T*> {
  enum { yes = 1 };
};
template <class F> struct Signature {
  enum { pointers = -1, bytes = -1 };
};
template <class... A> struct Signature<void(A...)> {
  enum { pointers = (0 + ... + (int)IsPointer<A>::yes), bytes = (0 + ... + (int)sizeof(A)) };
};
}  // namespace cudal1

template <class T> using compute = typename cudal1::Compute<T>::type;

template <class T> CUDAL1_FN compute<T> ld(const T* p) { return cudal1::widen(*p); }
template <class T, class V> CUDAL1_FN void st(T* p, V v) { *p = cudal1::Narrow<T>::from(v); }
template <class T, class V> CUDAL1_FN compute<T> round_to(V v) { return cudal1::widen(cudal1::Narrow<T>::from(v)); }

// ---------------------------------------------------------------- vectors
namespace cudal1 {
template <int BYTES> struct Word;
template <> struct Word<1> { typedef unsigned char type; };
template <> struct Word<2> { typedef unsigned short type; };
template <> struct Word<4> { typedef unsigned int type; };
template <> struct Word<8> { typedef uint2 type; };
template <> struct Word<16> { typedef uint4 type; };
template <class T, int N> union Pack {
  typename Word<N * (int)sizeof(T)>::type word;
  T item[N];
};
template <class A> struct Room { enum { n = 1 << 30 }; };
template <class C, int N> struct Room<C (&)[N]> { enum { n = N }; };
template <int V, class T> struct Split {  // items in one access of at most 16 bytes
  static_assert(V >= 1 && V <= 16 && (V & (V - 1)) == 0, "vload and vstore take 1, 2, 4, 8 or 16 elements");
  enum { n = V * (int)sizeof(T) > 16 ? 16 / (int)sizeof(T) : V };
};
}  // namespace cudal1

template <int V, class T, class A> CUDAL1_FN void vload(const T* p, A&& v) {
  static_assert((int)cudal1::Room<A>::n >= V, "the register array of vload is shorter than V");
  constexpr int n = cudal1::Split<V, T>::n;
#pragma unroll
  for (int k = 0; k < V / n; k++) {
    cudal1::Pack<T, n> pack;
    pack.word = ((const decltype(pack.word)*)p)[k];
#pragma unroll
    for (int i = 0; i < n; i++) v[k * n + i] = cudal1::widen(pack.item[i]);
  }
}

namespace cudal1 {
template <int N, class T, class A> CUDAL1_FN auto narrowed(const A& v, int first) {  // N items as one word
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; i++) pack.item[i] = Narrow<T>::from(v[first + i]);
  return pack.word;
}
}  // namespace cudal1

template <int V, class T, class A> CUDAL1_FN void vstore(T* p, A&& v) {
  static_assert((int)cudal1::Room<A>::n >= V, "the register array of vstore is shorter than V");
  constexpr int n = cudal1::Split<V, T>::n;
#pragma unroll
  for (int k = 0; k < V / n; k++) ((decltype(cudal1::Pack<T, n>::word)*)p)[k] = cudal1::narrowed<n, T>(v, k * n);
}

// A compiler would move loads behind the branch that alone needs them, and wait for each.
#ifdef CUDAL1_HOST
template <int V, class T, class A> CUDAL1_FN void vstore(T* p, A&& v, bool inside) {
  if (inside) vstore<V>(p, v);
}
#else
namespace cudal1 {
CUDAL1_FN void store_if(uint2* p, uint2 v, bool inside) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p st.global.v2.b32 [%0], {%1,%2};}"
               ::"l"(p), "r"(v.x), "r"(v.y), "r"((int)inside) : "memory");
}
CUDAL1_FN void store_if(uint4* p, uint4 v, bool inside) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.b32 [%0], {%1,%2,%3,%4};}"
               ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"((int)inside) : "memory");
}
template <class W> CUDAL1_FN void store_if(W* p, W v, bool inside) {
  if (inside) *p = v;
}
}  // namespace cudal1
template <int V, class T, class A> CUDAL1_FN void vstore(T* p, A&& v, bool inside) {
  static_assert((int)cudal1::Room<A>::n >= V, "the register array of vstore is shorter than V");
  constexpr int n = cudal1::Split<V, T>::n;
  const auto to = (decltype(cudal1::Pack<T, n>::word)*)p;
#pragma unroll
  for (int k = 0; k < V / n; k++) cudal1::store_if(to + k, cudal1::narrowed<n, T>(v, k * n), inside);
}
#endif

// Vectors at the ends of a row, or of rows whose length no vector divides: what is not read is 0.
namespace cudal1 {
template <int V, class T> CUDAL1_FN bool is_whole(const T* p, int from, int to) {
  constexpr int bytes = cudal1::Split<V, T>::n * (int)sizeof(T);
  return from <= 0 && to >= V && (unsigned long long)p % bytes == 0;
}
}  // namespace cudal1
template <int V, class T, class A> CUDAL1_FN void vload(const T* p, int from, int to, A&& v) {
  if (cudal1::is_whole<V>(p, from, to)) return vload<V>(p, v);
#pragma unroll
  for (int i = 0; i < V; i++) v[i] = i >= from && i < to ? cudal1::widen(p[i]) : compute<T>();
}
template <int V, class T, class A> CUDAL1_FN void vstore(T* p, int from, int to, A&& v) {
  if (cudal1::is_whole<V>(p, from, to)) return vstore<V>(p, v);
#pragma unroll
  for (int i = 0; i < V; i++)
    if (i >= from && i < to) p[i] = cudal1::Narrow<T>::from(v[i]);
}

// ---------------------------------------------------------------- limits
namespace cudal1 {
template <class T> struct Limit;
template <> struct Limit<float> {
  static CUDAL1_FN float low() { return -INFINITY; }
  static CUDAL1_FN float high() { return INFINITY; }
};
template <> struct Limit<double> {
  static CUDAL1_FN double low() { return -(double)INFINITY; }
  static CUDAL1_FN double high() { return (double)INFINITY; }
};
template <> struct Limit<int> {
  static CUDAL1_FN int low() { return -2147483647 - 1; }
  static CUDAL1_FN int high() { return 2147483647; }
};
template <> struct Limit<long long> {
  static CUDAL1_FN long long low() { return -9223372036854775807LL - 1; }
  static CUDAL1_FN long long high() { return 9223372036854775807LL; }
};
template <> struct Limit<i16> {
  static CUDAL1_FN int low() { return -32768; }
  static CUDAL1_FN int high() { return 32767; }
};
template <> struct Limit<i8> {
  static CUDAL1_FN int low() { return -128; }
  static CUDAL1_FN int high() { return 127; }
};
template <> struct Limit<u8> {
  static CUDAL1_FN int low() { return 0; }
  static CUDAL1_FN int high() { return 255; }
};
template <> struct Limit<bool> {
  static CUDAL1_FN bool low() { return false; }
  static CUDAL1_FN bool high() { return true; }
};
template <> struct Limit<f16> : Limit<float> {};
template <> struct Limit<bf16> : Limit<float> {};
}  // namespace cudal1

template <class T> CUDAL1_FN compute<T> lowest() { return cudal1::Limit<T>::low(); }
template <class T> CUDAL1_FN compute<T> highest() { return cudal1::Limit<T>::high(); }

// ---------------------------------------------------------------- pointwise operations
namespace cudal1 {
template <class A, class B> struct Wider { typedef decltype(A() + B()) type; };
template <> struct Wider<bool, bool> { typedef bool type; };
}  // namespace cudal1

// A comparison with NaN is false, so `a != a` is what lets a NaN in the first operand win; the second
// operand's NaN falls through `a > b`.
template <class A, class B> CUDAL1_FN typename cudal1::Wider<A, B>::type maximum(A x, B y) {
  typename cudal1::Wider<A, B>::type a = x, b = y;
  return a > b || a != a ? a : b;
}
template <class A, class B> CUDAL1_FN typename cudal1::Wider<A, B>::type minimum(A x, B y) {
  typename cudal1::Wider<A, B>::type a = x, b = y;
  return a < b || a != a ? a : b;
}
#ifndef CUDAL1_HOST
CUDAL1_FN float maximum(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
CUDAL1_FN float minimum(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
#endif
// What to take from exponents before they are summed: an infinite maximum minus itself would be NaN.
template <class T> CUDAL1_FN T finite_or_zero(T x) { return x == (T)INFINITY || x == -(T)INFINITY ? (T)0 : x; }
template <class T> CUDAL1_FN T relu(T x) { return x < (T)0 ? (T)0 : x; }
template <class T> CUDAL1_FN T sign(T x) { return (T)((int)(x > (T)0) - (int)(x < (T)0)); }
template <class T> CUDAL1_FN T reciprocal(T x) { return (T)1 / x; }
CUDAL1_FN float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
CUDAL1_FN double sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
CUDAL1_FN float round_even(float x) { return rintf(x); }
CUDAL1_FN double round_even(double x) { return rint(x); }
CUDAL1_FN float remainder_(float a, float b) {
  float r = fmodf(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}
CUDAL1_FN double remainder_(double a, double b) {
  double r = fmod(a, b);
  return r != 0.0 && (r < 0.0) != (b < 0.0) ? r + b : r;
}
CUDAL1_FN int remainder_(int a, int b) {
  int r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
CUDAL1_FN long long remainder_(long long a, long long b) {
  long long r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
CUDAL1_FN long long remainder_(long long a, int b) { return remainder_(a, (long long)b); }
CUDAL1_FN long long remainder_(int a, long long b) { return remainder_((long long)a, b); }
template <class T> CUDAL1_FN T int_pow(T base, T exponent) {  // as torch: 0 for a negative exponent unless |base| is 1
  if (exponent < 0) return base == 1 ? (T)1 : base == (T)-1 ? (exponent % 2 ? (T)-1 : (T)1) : (T)0;
  T result = 1;
  for (; exponent > 0; exponent /= 2) {
    if (exponent % 2) result *= base;
    base *= base;
  }
  return result;
}

// ---------------------------------------------------------------- threads of a block
CUDAL1_FN int thread_id() { return (int)(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)); }
CUDAL1_FN int block_threads() { return (int)(blockDim.x * blockDim.y * blockDim.z); }
CUDAL1_FN int lane_id() { return thread_id() % 32; }
CUDAL1_FN int warp_id() { return thread_id() / 32; }
namespace cudal1 {
// Who hands out what along n: `lanes` neighbours a row, each thread so many columns `each` times.
template <int BM, int BN, int COLUMNS> struct AlongLanes {
  enum { vectors = BN / COLUMNS, lanes = vectors % 32 == 0 ? 32 : vectors < 16 ? vectors : 16 };
  enum { rows = 2 * BM / lanes, each = vectors / lanes };
};
}  // namespace cudal1

// ---------------------------------------------------------------- warp and block reductions
namespace cudal1 {
struct Sum { template <class T> static CUDAL1_FN T join(T a, T b) { return a + b; } };
struct Prod { template <class T> static CUDAL1_FN T join(T a, T b) { return a * b; } };
struct Max { template <class T> static CUDAL1_FN T join(T a, T b) { return maximum(a, b); } };
struct Min { template <class T> static CUDAL1_FN T join(T a, T b) { return minimum(a, b); } };

template <class F, class T> CUDAL1_FN T warp_reduce(T x CUDAL1_FROM) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) x = F::join(x, __shfl_xor_sync(0xffffffffu, x, m CUDAL1_SHUFFLE_AT));
  return x;
}
// The first barrier keeps a second call from overwriting `part` while a slow warp still reads the first one's.
template <class F, class T> CUDAL1_FN T block_reduce(T x CUDAL1_FROM) {
  __shared__ T part[32];
  x = warp_reduce<F>(x CUDAL1_AT);
  int warps = block_threads() / 32;
  if (warps == 1) return x;
  __syncthreads(CUDAL1_LINE_ONLY);
  if (lane_id() == 0) part[warp_id()] = x;
  __syncthreads(CUDAL1_LINE_ONLY);
  x = part[lane_id() < warps ? lane_id() : 0];
  T result = x;
#pragma unroll
  for (int m = 16; m > 0; m /= 2) {  // lanes past `warps` hold a copy that must not be counted
    T other = __shfl_down_sync(0xffffffffu, result, m CUDAL1_SHUFFLE_AT);
    if (lane_id() + m < warps) result = F::join(result, other);
  }
  return __shfl_sync(0xffffffffu, result, 0 CUDAL1_SHUFFLE_AT);
}

template <bool LARGEST, class T, class I> CUDAL1_FN void keep_best(T& v, I& i, T w, I j) {
  bool v_nan = v != v, w_nan = w != w;
  bool better = LARGEST ? w > v : w < v;
  bool equal = w == v || (v_nan && w_nan);
  if ((w_nan && !v_nan) || (!v_nan && better) || (equal && j < i)) {
    v = w;
    i = j;
  }
}
template <bool LARGEST, class T, class I> CUDAL1_FN void warp_best(T& v, I& i CUDAL1_FROM) {
#pragma unroll
  for (int m = 16; m > 0; m /= 2) {
    T w = __shfl_xor_sync(0xffffffffu, v, m CUDAL1_SHUFFLE_AT);
    I j = __shfl_xor_sync(0xffffffffu, i, m CUDAL1_SHUFFLE_AT);
    keep_best<LARGEST>(v, i, w, j);
  }
}
template <bool LARGEST, class T, class I> CUDAL1_FN void block_best(T& v, I& i CUDAL1_FROM) {
  __shared__ T part[32];
  __shared__ I part_index[32];
  warp_best<LARGEST>(v, i CUDAL1_AT);
  int warps = block_threads() / 32;
  if (warps == 1) return;
  __syncthreads(CUDAL1_LINE_ONLY);
  if (lane_id() == 0) {
    part[warp_id()] = v;
    part_index[warp_id()] = i;
  }
  __syncthreads(CUDAL1_LINE_ONLY);
  v = part[lane_id() < warps ? lane_id() : 0];  // a repeated pair changes nothing
  i = part_index[lane_id() < warps ? lane_id() : 0];
  warp_best<LARGEST>(v, i CUDAL1_AT);
}

template <class F, class T> CUDAL1_FN T warp_scan(T x CUDAL1_FROM) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    T before = __shfl_up_sync(0xffffffffu, x, d CUDAL1_SHUFFLE_AT);
    if (lane_id() >= d) x = F::join(before, x);
  }
  return x;
}
template <class F, class T> CUDAL1_FN T block_scan(T x, T& total CUDAL1_FROM) {
  __shared__ T part[32];
  x = warp_scan<F>(x CUDAL1_AT);
  int warps = block_threads() / 32;
  __syncthreads(CUDAL1_LINE_ONLY);
  if (lane_id() == 31) part[warp_id()] = x;
  __syncthreads(CUDAL1_LINE_ONLY);
  T sums = warp_scan<F>(part[lane_id() < warps ? lane_id() : 0] CUDAL1_AT);
  total = __shfl_sync(0xffffffffu, sums, warps - 1 CUDAL1_SHUFFLE_AT);
  T before = __shfl_sync(0xffffffffu, sums, warp_id() > 0 ? warp_id() - 1 : 0 CUDAL1_SHUFFLE_AT);
  return warp_id() > 0 ? F::join(before, x) : x;
}
}  // namespace cudal1

template <class T> CUDAL1_FN T warp_sum(T x CUDAL1_FROM) { return cudal1::warp_reduce<cudal1::Sum>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T warp_prod(T x CUDAL1_FROM) { return cudal1::warp_reduce<cudal1::Prod>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T warp_max(T x CUDAL1_FROM) { return cudal1::warp_reduce<cudal1::Max>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T warp_min(T x CUDAL1_FROM) { return cudal1::warp_reduce<cudal1::Min>(x CUDAL1_AT); }
CUDAL1_FN bool warp_all(bool x CUDAL1_FROM) { return __all_sync(0xffffffffu, x CUDAL1_AT) != 0; }
CUDAL1_FN bool warp_any(bool x CUDAL1_FROM) { return __any_sync(0xffffffffu, x CUDAL1_AT) != 0; }
template <class T> CUDAL1_FN T block_sum(T x CUDAL1_FROM) { return cudal1::block_reduce<cudal1::Sum>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T block_prod(T x CUDAL1_FROM) { return cudal1::block_reduce<cudal1::Prod>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T block_max(T x CUDAL1_FROM) { return cudal1::block_reduce<cudal1::Max>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T block_min(T x CUDAL1_FROM) { return cudal1::block_reduce<cudal1::Min>(x CUDAL1_AT); }
CUDAL1_FN bool block_all(bool x CUDAL1_FROM) { return __syncthreads_and(x CUDAL1_AT) != 0; }
CUDAL1_FN bool block_any(bool x CUDAL1_FROM) { return __syncthreads_or(x CUDAL1_AT) != 0; }

template <class T, class I> CUDAL1_FN void warp_argmax(T& v, I& i CUDAL1_FROM) {
  cudal1::warp_best<true>(v, i CUDAL1_AT);
}
template <class T, class I> CUDAL1_FN void warp_argmin(T& v, I& i CUDAL1_FROM) {
  cudal1::warp_best<false>(v, i CUDAL1_AT);
}
template <class T, class I> CUDAL1_FN void block_argmax(T& v, I& i CUDAL1_FROM) {
  cudal1::block_best<true>(v, i CUDAL1_AT);
}
template <class T, class I> CUDAL1_FN void block_argmin(T& v, I& i CUDAL1_FROM) {
  cudal1::block_best<false>(v, i CUDAL1_AT);
}

template <class T, class I> CUDAL1_FN void join_argmax(T& v, I& i, T w, I j) { cudal1::keep_best<true>(v, i, w, j); }
template <class T, class I> CUDAL1_FN void join_argmin(T& v, I& i, T w, I j) { cudal1::keep_best<false>(v, i, w, j); }

template <class T> CUDAL1_FN T warp_scan_sum(T x CUDAL1_FROM) { return cudal1::warp_scan<cudal1::Sum>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T warp_scan_prod(T x CUDAL1_FROM) { return cudal1::warp_scan<cudal1::Prod>(x CUDAL1_AT); }
template <class T> CUDAL1_FN T block_scan_sum(T x, T& total CUDAL1_FROM) {
  return cudal1::block_scan<cudal1::Sum>(x, total CUDAL1_AT);
}
template <class T> CUDAL1_FN T block_scan_prod(T x, T& total CUDAL1_FROM) {
  return cudal1::block_scan<cudal1::Prod>(x, total CUDAL1_AT);
}
template <class T> CUDAL1_FN T block_scan_sum(T x CUDAL1_FROM) {
  T total;
  return block_scan_sum(x, total CUDAL1_AT);
}
template <class T> CUDAL1_FN T block_scan_prod(T x CUDAL1_FROM) {
  T total;
  return block_scan_prod(x, total CUDAL1_AT);
}

// ---------------------------------------------------------------- atomics
namespace cudal1 {
CUDAL1_FN unsigned to_bits(float x) { return __float_as_uint(x); }
CUDAL1_FN unsigned to_bits(int x) { return (unsigned)x; }
CUDAL1_FN unsigned long long to_bits(double x) { return (unsigned long long)__double_as_longlong(x); }
CUDAL1_FN unsigned long long to_bits(long long x) { return (unsigned long long)x; }
CUDAL1_FN void from_bits(unsigned b, float& x) { x = __uint_as_float(b); }
CUDAL1_FN void from_bits(unsigned b, int& x) { x = (int)b; }
CUDAL1_FN void from_bits(unsigned long long b, double& x) { x = __longlong_as_double((long long)b); }
CUDAL1_FN void from_bits(unsigned long long b, long long& x) { x = (long long)b; }
template <class F, class T> CUDAL1_FN void atomic_join(T* p, T v) {
  typedef decltype(to_bits(v)) Bits;
  Bits seen = CUDAL1_ATOMIC_READ((Bits*)p), expected;
  do {
    T old;
    from_bits(seen, old);
    Bits next = to_bits(F::join(old, v));
    if (next == seen) return;
    expected = seen;
    seen = atomicCAS((Bits*)p, expected, next);
  } while (seen != expected);
}
}  // namespace cudal1

CUDAL1_FN void atomic_add(float* p, float v) { atomicAdd(p, v); }
CUDAL1_FN void atomic_add(double* p, double v) { atomicAdd(p, v); }
CUDAL1_FN void atomic_add(int* p, int v) { atomicAdd(p, v); }
CUDAL1_FN void atomic_add(long long* p, long long v) { atomicAdd((unsigned long long*)p, (unsigned long long)v); }
template <class T> CUDAL1_FN void atomic_max(T* p, compute<T> v) { cudal1::atomic_join<cudal1::Max>(p, v); }
template <class T> CUDAL1_FN void atomic_min(T* p, compute<T> v) { cudal1::atomic_join<cudal1::Min>(p, v); }

// ---------------------------------------------------------------- blocks that wait for each other
// Blocks start in the order of their numbers, so those that are waited for have started or come next: a group that
// fits on the device never waits for one that does not run. On the host target a block that waits is put aside and
// runs again from its start once the others have come (scheduler.cpp).
CUDAL1_FN void wait_for_blocks(int* count, int n CUDAL1_FROM) {
  __syncthreads(CUDAL1_LINE_ONLY);
#ifdef CUDAL1_HOST
  __threadfence();
  atomicAdd(count, 0);  // a check build sees who told whom
  cudal1_wait_for_blocks(count, n);
  __threadfence();
#else
  if (thread_id() == 0) {
    __threadfence();
    if (n > 64 || atomicAdd(count, 1) >= n) __trap();  // more blocks than that would be a race
    while (*(volatile int*)count < n) __nanosleep(20);
    __threadfence();
  }
#endif
  __syncthreads(CUDAL1_LINE_ONLY);
}
