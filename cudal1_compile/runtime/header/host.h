// host.h: CUDA C++ on a CPU, for g++. Stands in front of cudal1.cuh on the host target.
//
// The threads of a block are fibers of one OS thread; a barrier or a warp collective is a call into the
// scheduler (native/scheduler.cpp). `__shared__` variables are thread_local, so the TLS segment of the built
// object is exactly the block's static shared memory. `extern __shared__ T s[];` cannot be said by a macro:
// hostbuild.py rewrites that one line. Maths is exact (libm), atomics are plain because fibers never run at
// the same time; the check build sees them as atomics all the same.
//
// It includes no header of the C++ library, which would cost every candidate 0.05 s and bring names, overloads and
// conversions that NVRTC does not know: what compiles here should compile there, with the same types.
#pragma once
#include "host_abi.h"

#define CUDAL1_HOST 1

// ---------------------------------------------------------------- keywords
#define __global__ __attribute__((unused))
#define __device__ __attribute__((unused))
#define __host__
#define __constant__ const
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
#define alignas(...) __attribute__((aligned(__VA_ARGS__)))  // g++ takes no standard attribute after a specifier
#define __shared__ static __thread
#define CUDAL1_DYNAMIC_SHARED(T, name) static T* const name = (T*)cudal1_dynamic

// ---------------------------------------------------------------- names of C that NVRTC knows without an include
typedef __SIZE_TYPE__ size_t;
typedef __PTRDIFF_TYPE__ ptrdiff_t;
#define NULL __null
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fc00000)
extern "C" void* memcpy(void* to, const void* from, size_t bytes);
extern "C" void* memset(void* to, int value, size_t bytes);

// ---------------------------------------------------------------- vector types
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
namespace cudal1_host {
template <bool YES, class T = void> struct If {};
template <class T> struct If<true, T> {
  typedef T type;
};
template <class T> struct Cached {};  // has a type where __ldg and its like take T: no bool, no other struct
}  // namespace cudal1_host
#define CUDAL1_CACHED(T) \
  template <> struct cudal1_host::Cached<T> : If<sizeof(T) <= 16, T> {};
CUDAL1_CACHED(char)
CUDAL1_CACHED(long)
CUDAL1_CACHED(unsigned long)
#define CUDAL1_VECTOR(T, NAME)                                                                   \
  struct NAME##1 {                                                                               \
    T x;                                                                                         \
  };                                                                                             \
  struct __align__(2 * sizeof(T)) NAME##2 {                                                      \
    T x, y;                                                                                      \
  };                                                                                             \
  struct NAME##3 {                                                                               \
    T x, y, z;                                                                                   \
  };                                                                                             \
  struct __align__(4 * sizeof(T) > 16 ? 16 : 4 * sizeof(T)) NAME##4 {                            \
    T x, y, z, w;                                                                                \
  };                                                                                             \
  static inline NAME##1 make_##NAME##1(T x) { return {x}; }                                      \
  static inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                              \
  static inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                      \
  static inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }              \
  CUDAL1_CACHED(T)                                                                               \
  CUDAL1_CACHED(NAME##2)                                                                         \
  CUDAL1_CACHED(NAME##4)
CUDAL1_VECTOR(unsigned, uint)
CUDAL1_VECTOR(signed char, char)
CUDAL1_VECTOR(unsigned char, uchar)
CUDAL1_VECTOR(short, short)
CUDAL1_VECTOR(unsigned short, ushort)
CUDAL1_VECTOR(int, int)
CUDAL1_VECTOR(float, float)
CUDAL1_VECTOR(double, double)
CUDAL1_VECTOR(long long, longlong)
CUDAL1_VECTOR(unsigned long long, ulonglong)

// ---------------------------------------------------------------- indices
#define threadIdx (cudal1_state.thread)
#define blockIdx (cudal1_state.block)
#define blockDim (cudal1_state.block_dim)
#define gridDim (cudal1_state.grid_dim)
#define warpSize 32

// ---------------------------------------------------------------- how the launcher calls a kernel
namespace cudal1_host {
template <class T> struct Plain {
  typedef T type;
};
template <class T> struct Plain<const T> {
  typedef T type;
};
template <int... I> struct Numbers {};
template <int N> struct UpTo {
  template <int... I> static Numbers<I...> make(Numbers<I...>);
  typedef Numbers<__integer_pack(N)...> type;
};
template <auto KERNEL> struct Invoke;
template <class... A, void (*KERNEL)(A...)> struct Invoke<KERNEL> {
  template <int... I> static void call(void** a, Numbers<I...>) { KERNEL(*(typename Plain<A>::type*)a[I]...); }
  static void run(void** a) { call(a, typename UpTo<sizeof...(A)>::type{}); }
};
template <class T> inline unsigned long long to_word(T v) {
  static_assert(sizeof(T) <= 8, "a warp collective takes at most 8 bytes");
  unsigned long long word = 0;
  __builtin_memcpy(&word, &v, sizeof v);
  return word;
}
template <class T> inline T from_word(unsigned long long word) {
  T v;
  __builtin_memcpy((void*)&v, &word, sizeof v);
  return v;
}
}  // namespace cudal1_host
#define CUDAL1_ENTRY(kernel)                                                                          \
  extern "C" __attribute__((visibility("default"))) void cudal1_entry_##kernel(void** cudal1_words) { \
    cudal1_host::Invoke<&kernel>::run(cudal1_words);                                                  \
  }
// Makes the calling thread's copy of the TLS segment, so that the runner can find and poison it.
#define CUDAL1_TOUCH_SHARED                                                         \
  static __thread volatile char cudal1_probe;                                       \
  extern "C" __attribute__((visibility("default"))) void cudal1_touch_shared() {    \
    cudal1_probe = 1;                                                               \
  }

// ---------------------------------------------------------------- barriers and warp collectives
#define CUDAL1_LINE int line = __builtin_LINE()
static inline void __syncthreads(CUDAL1_LINE) { cudal1_barrier(CUDAL1_BARRIER_PLAIN, 0, line); }
static inline int __syncthreads_count(int p, CUDAL1_LINE) { return cudal1_barrier(CUDAL1_BARRIER_COUNT, p, line); }
static inline int __syncthreads_and(int p, CUDAL1_LINE) { return cudal1_barrier(CUDAL1_BARRIER_AND, p, line); }
static inline int __syncthreads_or(int p, CUDAL1_LINE) { return cudal1_barrier(CUDAL1_BARRIER_OR, p, line); }
static inline void __syncwarp(unsigned mask = ~0u, CUDAL1_LINE) {
  cudal1_collective(CUDAL1_SYNCWARP, mask, 0, 0, line);
}
static inline unsigned __activemask() { return cudal1_active_mask(); }
static inline unsigned __ballot_sync(unsigned mask, int p, CUDAL1_LINE) {
  return (unsigned)cudal1_collective(CUDAL1_BALLOT, mask, p != 0, 0, line);
}
static inline int __any_sync(unsigned mask, int p, CUDAL1_LINE) { return __ballot_sync(mask, p, line) != 0; }
static inline int __all_sync(unsigned mask, int p, CUDAL1_LINE) { return __ballot_sync(mask, !p, line) == 0; }
template <class T, class = decltype(1 * T())> inline unsigned __match_any_sync(unsigned mask, T v, CUDAL1_LINE) {
  return (unsigned)cudal1_collective(CUDAL1_MATCH, mask, cudal1_host::to_word(v), 0, line);
}
namespace cudal1_host {
template <class T> using Promoted = decltype(1 * T());  // short to int; none of a struct
template <class T> inline Promoted<T> shuffle(unsigned mask, T v, int source, int line) {
  return from_word<Promoted<T>>(cudal1_collective(CUDAL1_SHUFFLE, mask, to_word<Promoted<T>>(v), source, line));
}
static inline int segment(int width) { return cudal1_state.lane & ~(width - 1); }
}  // namespace cudal1_host
template <class T>
inline cudal1_host::Promoted<T> __shfl_sync(unsigned mask, T v, int source, int width = 32, CUDAL1_LINE) {
  return cudal1_host::shuffle(mask, v, cudal1_host::segment(width) + (source & (width - 1)), line);
}
template <class T>
inline cudal1_host::Promoted<T> __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32, CUDAL1_LINE) {
  int lane = cudal1_state.lane, within = lane & (width - 1);
  return cudal1_host::shuffle(mask, v, within + (int)d < width ? lane + (int)d : lane, line);
}
template <class T>
inline cudal1_host::Promoted<T> __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32, CUDAL1_LINE) {
  int lane = cudal1_state.lane, within = lane & (width - 1);
  return cudal1_host::shuffle(mask, v, within >= (int)d ? lane - (int)d : lane, line);
}
template <class T>
inline cudal1_host::Promoted<T> __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, CUDAL1_LINE) {
  int lane = cudal1_state.lane, source = lane ^ bits;
  return cudal1_host::shuffle(mask, v, source < cudal1_host::segment(width) + width ? source : lane, line);
}
#define CUDAL1_WARP_REDUCE(NAME, T, KIND)                                                  \
  static inline T __reduce_##NAME##_sync(unsigned mask, T v, CUDAL1_LINE) {                \
    return (T)cudal1_collective(KIND, mask, (unsigned long long)(long long)v, 0, line);    \
  }
CUDAL1_WARP_REDUCE(add, int, CUDAL1_REDUCE_ADD)
CUDAL1_WARP_REDUCE(add, unsigned, CUDAL1_REDUCE_ADD)
CUDAL1_WARP_REDUCE(min, int, CUDAL1_REDUCE_MIN)
CUDAL1_WARP_REDUCE(min, unsigned, CUDAL1_REDUCE_UMIN)
CUDAL1_WARP_REDUCE(max, int, CUDAL1_REDUCE_MAX)
CUDAL1_WARP_REDUCE(max, unsigned, CUDAL1_REDUCE_UMAX)
CUDAL1_WARP_REDUCE(and, unsigned, CUDAL1_REDUCE_AND)
CUDAL1_WARP_REDUCE(or, unsigned, CUDAL1_REDUCE_OR)
CUDAL1_WARP_REDUCE(xor, unsigned, CUDAL1_REDUCE_XOR)

// ---------------------------------------------------------------- atomics, fences, cached accesses
namespace cudal1_host {
template <int BYTES> struct Bits;
template <> struct Bits<2> {
  typedef unsigned short type;
};
template <> struct Bits<4> {
  typedef unsigned type;
};
template <> struct Bits<8> {
  typedef unsigned long long type;
};
template <class A, class B> struct Same {
  enum { yes = 0 };
};
template <class A> struct Same<A, A> {
  enum { yes = 1 };
};
template <class T, class... OF> using Among = typename If<(Same<T, OF>::yes || ...)>::type;
template <class T, class F> inline T update(T* p, F change) {
  typedef typename Bits<sizeof(T)>::type Word;
  Word seen = __atomic_load_n((Word*)p, __ATOMIC_RELAXED), next;
  T old;
  do {
    __builtin_memcpy((void*)&old, &seen, sizeof old);
    T value = change(old);
    __builtin_memcpy(&next, (void*)&value, sizeof next);
  } while (!__atomic_compare_exchange_n((Word*)p, &seen, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
}  // namespace cudal1_host
// What only a check build is told of: accesses that mean less than they seem to.
#ifdef __SANITIZE_THREAD__
#define CUDAL1_NOTE(WHAT, p) cudal1_##WHAT(p, sizeof *p)
#else
#define CUDAL1_NOTE(WHAT, p) (void)0
#endif
#define CUDAL1_ATOMIC(NAME, VALUE, ...)                                 \
  template <class T, class = cudal1_host::Among<T, __VA_ARGS__>>        \
  inline T NAME(T* p, typename cudal1_host::Plain<T>::type v) {         \
    return cudal1_host::update(p, [&](T old) -> T { return VALUE; });   \
  }                                                                     \
  template <class T, class = cudal1_host::Among<T, __VA_ARGS__>>        \
  inline T NAME##_block(T* p, typename cudal1_host::Plain<T>::type v) { \
    CUDAL1_NOTE(block_atomic, p);                                       \
    return NAME(p, v);                                                  \
  }
CUDAL1_ATOMIC(atomicAdd, (T)(old + v), int, unsigned, unsigned long long, float, double)
CUDAL1_ATOMIC(atomicSub, (T)(old - v), int, unsigned)
CUDAL1_ATOMIC(atomicMin, v < old ? v : old, int, unsigned, long long, unsigned long long)
CUDAL1_ATOMIC(atomicMax, old < v ? v : old, int, unsigned, long long, unsigned long long)
CUDAL1_ATOMIC(atomicExch, ((void)old, v), int, unsigned, unsigned long long, float)
CUDAL1_ATOMIC(atomicAnd, (T)(old & v), int, unsigned, long long, unsigned long long)
CUDAL1_ATOMIC(atomicOr, (T)(old | v), int, unsigned, long long, unsigned long long)
CUDAL1_ATOMIC(atomicXor, (T)(old ^ v), int, unsigned, long long, unsigned long long)
CUDAL1_ATOMIC(atomicInc, (T)(old >= v ? 0 : old + 1), unsigned)
CUDAL1_ATOMIC(atomicDec, (T)(old == 0 || old > v ? v : old - 1), unsigned)
template <class T, class = cudal1_host::Among<T, unsigned short, int, unsigned, unsigned long long>>
inline T atomicCAS(T* p, typename cudal1_host::Plain<T>::type expected, typename cudal1_host::Plain<T>::type v) {
  return cudal1_host::update(p, [&](T old) -> T { return old == expected ? v : old; });
}
static inline void __threadfence() { cudal1_fence(); }
static inline void __threadfence_block() {}  // tells no other block anything, and threads of one meet at barriers
static inline void __threadfence_system() { cudal1_fence(); }
static inline void __trap() { cudal1_trap(); }
static inline long long clock64() { return cudal1_clock(); }
#define CUDAL1_LOAD(NAME) \
  template <class T> inline typename cudal1_host::Cached<T>::type NAME(const T* p) { return *p; }
#define CUDAL1_STORE(NAME) \
  template <class T> inline void NAME(T* p, typename cudal1_host::Cached<T>::type v) { *p = v; }
// Its cache is not told of stores: what this launch has written it may not see.
template <class T> inline typename cudal1_host::Cached<T>::type __ldg(const T* p) {
  CUDAL1_NOTE(cached_read, p);
  return *p;
}
CUDAL1_LOAD(__ldca)
CUDAL1_LOAD(__ldcg)
CUDAL1_LOAD(__ldcs)
CUDAL1_LOAD(__ldlu)
CUDAL1_LOAD(__ldcv)
CUDAL1_STORE(__stwb)
CUDAL1_STORE(__stcg)
CUDAL1_STORE(__stcs)
CUDAL1_STORE(__stwt)

// ---------------------------------------------------------------- bits
#define CUDAL1_BITCAST(NAME, FROM, TO) \
  static inline TO NAME(FROM v) {      \
    TO r;                              \
    __builtin_memcpy(&r, &v, sizeof r);          \
    return r;                          \
  }
CUDAL1_BITCAST(__float_as_int, float, int)
CUDAL1_BITCAST(__float_as_uint, float, unsigned)
CUDAL1_BITCAST(__int_as_float, int, float)
CUDAL1_BITCAST(__uint_as_float, unsigned, float)
CUDAL1_BITCAST(__double_as_longlong, double, long long)
CUDAL1_BITCAST(__longlong_as_double, long long, double)
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline unsigned __brev(unsigned x) {
  unsigned r = 0;
  for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
  return r;
}
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }

// ---------------------------------------------------------------- maths: libm's functions in CUDA's overloads
// Of float and double only: a call with an integer alone is ambiguous, as it is to NVRTC.
#define CUDAL1_MATHS(R, RF, NAME)     \
  extern "C" R NAME(double);          \
  extern "C" RF NAME##f(float);       \
  static inline RF NAME(float x) { return NAME##f(x); }
#define CUDAL1_MATHS1(NAME) CUDAL1_MATHS(double, float, NAME)
#define CUDAL1_MATHS2(NAME)                \
  extern "C" double NAME(double, double);  \
  extern "C" float NAME##f(float, float);  \
  static inline float NAME(float x, float y) { return NAME##f(x, y); }
#define CUDAL1_MATHS2_INT(NAME)         \
  extern "C" double NAME(double, int);  \
  extern "C" float NAME##f(float, int); \
  static inline float NAME(float x, int n) { return NAME##f(x, n); }
CUDAL1_MATHS1(acos)
CUDAL1_MATHS1(acosh)
CUDAL1_MATHS1(asin)
CUDAL1_MATHS1(asinh)
CUDAL1_MATHS1(atan)
CUDAL1_MATHS1(atanh)
CUDAL1_MATHS1(cbrt)
CUDAL1_MATHS1(ceil)
CUDAL1_MATHS1(cos)
CUDAL1_MATHS1(cosh)
CUDAL1_MATHS1(erf)
CUDAL1_MATHS1(erfc)
CUDAL1_MATHS1(exp)
CUDAL1_MATHS1(exp10)
CUDAL1_MATHS1(exp2)
CUDAL1_MATHS1(expm1)
CUDAL1_MATHS1(fabs)
CUDAL1_MATHS1(floor)
CUDAL1_MATHS1(j0)
CUDAL1_MATHS1(j1)
CUDAL1_MATHS1(lgamma)
CUDAL1_MATHS1(log)
CUDAL1_MATHS1(log10)
CUDAL1_MATHS1(log1p)
CUDAL1_MATHS1(log2)
CUDAL1_MATHS1(logb)
CUDAL1_MATHS1(nearbyint)
CUDAL1_MATHS1(rint)
CUDAL1_MATHS1(round)
CUDAL1_MATHS1(sin)
CUDAL1_MATHS1(sinh)
CUDAL1_MATHS1(sqrt)
CUDAL1_MATHS1(tan)
CUDAL1_MATHS1(tanh)
CUDAL1_MATHS1(tgamma)
CUDAL1_MATHS1(trunc)
CUDAL1_MATHS1(y0)
CUDAL1_MATHS1(y1)
CUDAL1_MATHS(int, int, ilogb)
CUDAL1_MATHS(long, long, lrint)
CUDAL1_MATHS(long, long, lround)
CUDAL1_MATHS(long long, long long, llrint)
CUDAL1_MATHS(long long, long long, llround)
CUDAL1_MATHS2(atan2)
CUDAL1_MATHS2(fdim)
CUDAL1_MATHS2(fmax)
CUDAL1_MATHS2(fmin)
CUDAL1_MATHS2(fmod)
CUDAL1_MATHS2(hypot)
CUDAL1_MATHS2(nextafter)
CUDAL1_MATHS2(pow)
CUDAL1_MATHS2(remainder)
CUDAL1_MATHS2_INT(ldexp)
CUDAL1_MATHS2_INT(scalbn)
static inline float pow(float x, int n) { return powf(x, (float)n); }
static inline double pow(double x, int n) { return pow(x, (double)n); }
extern "C" double copysign(double, double);
extern "C" float copysignf(float, float);
static inline float copysign(float x, float y) { return copysignf(x, y); }
static inline double copysign(float x, double y) { return copysign((double)x, y); }
static inline double copysign(double x, float y) { return copysign(x, (double)y); }
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
static inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
extern "C" int abs(int);
extern "C" long labs(long);
extern "C" long long llabs(long long);
static inline long abs(long x) { return labs(x); }
static inline long long abs(long long x) { return llabs(x); }
static inline float abs(float x) { return fabsf(x); }
static inline double abs(double x) { return fabs(x); }
// Stored here and not by libm, where no check would see it.
#define CUDAL1_SINCOS(NAME, T, SIN, COS)             \
  static inline void NAME(T x, T* sine, T* cosine) { \
    *sine = SIN(x);                                  \
    *cosine = COS(x);                                \
  }
CUDAL1_SINCOS(sincos, float, sinf, cosf)
CUDAL1_SINCOS(sincosf, float, sinf, cosf)
CUDAL1_SINCOS(__sincosf, float, sinf, cosf)
CUDAL1_SINCOS(sincos, double, sin, cos)
#define CUDAL1_CLASSIFY(NAME)                                          \
  static inline int NAME(float x) { return __builtin_##NAME(x) != 0; } \
  static inline int NAME(double x) { return __builtin_##NAME(x) != 0; }
CUDAL1_CLASSIFY(isnan)
CUDAL1_CLASSIFY(isinf)
CUDAL1_CLASSIFY(isfinite)
CUDAL1_CLASSIFY(signbit)

// ---------------------------------------------------------------- CUDA's own maths
static inline float __expf(float x) { return expf(x); }
static inline float __exp10f(float x) { return exp10f(x); }
static inline float __logf(float x) { return logf(x); }
static inline float __log2f(float x) { return log2f(x); }
static inline float __log10f(float x) { return log10f(x); }
static inline float __powf(float x, float y) { return powf(x, y); }
static inline float __sinf(float x) { return sinf(x); }
static inline float __cosf(float x) { return cosf(x); }
static inline float __tanf(float x) { return tanf(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float rsqrt(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __frsqrt_rn(float x) { return 1.0f / sqrtf(x); }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
static inline int __float2int_rz(float x) {
  return x >= 2147483648.0f ? 2147483647 : x < -2147483648.0f ? -2147483647 - 1 : x == x ? (int)x : 0;
}
static inline int __float2int_rn(float x) { return __float2int_rz(rintf(x)); }
static inline int __float2int_rd(float x) { return __float2int_rz(floorf(x)); }
static inline int __float2int_ru(float x) { return __float2int_rz(ceilf(x)); }
static inline float __int2float_rn(int x) { return (float)x; }

#define CUDAL1_MINMAX(T, MIN, MAX)                   \
  static inline T min(T a, T b) { return MIN; }      \
  static inline T max(T a, T b) { return MAX; }
CUDAL1_MINMAX(int, b < a ? b : a, a < b ? b : a)
CUDAL1_MINMAX(unsigned, b < a ? b : a, a < b ? b : a)
CUDAL1_MINMAX(long, b < a ? b : a, a < b ? b : a)
CUDAL1_MINMAX(unsigned long, b < a ? b : a, a < b ? b : a)
CUDAL1_MINMAX(long long, b < a ? b : a, a < b ? b : a)
CUDAL1_MINMAX(unsigned long long, b < a ? b : a, a < b ? b : a)
CUDAL1_MINMAX(float, fminf(a, b), fmaxf(a, b))
CUDAL1_MINMAX(double, fmin(a, b), fmax(a, b))
#define CUDAL1_MINMAX_MIXED(A, B, R)                             \
  static inline R min(A a, B b) { return min((R)a, (R)b); }      \
  static inline R max(A a, B b) { return max((R)a, (R)b); }
CUDAL1_MINMAX_MIXED(int, unsigned, unsigned)
CUDAL1_MINMAX_MIXED(unsigned, int, unsigned)
CUDAL1_MINMAX_MIXED(long, unsigned long, unsigned long)
CUDAL1_MINMAX_MIXED(unsigned long, long, unsigned long)
CUDAL1_MINMAX_MIXED(long long, unsigned long long, unsigned long long)
CUDAL1_MINMAX_MIXED(unsigned long long, long long, unsigned long long)
CUDAL1_MINMAX_MIXED(float, double, double)
CUDAL1_MINMAX_MIXED(double, float, double)

#include "cudal1.cuh"
#include "scan.cuh"
#include "moments.cuh"
#include "product.cuh"
#include "product_pipe.cuh"
#include "product_patch.cuh"
#include "product_stem.cuh"
#include "product_wide.cuh"
#include "product_bulk.cuh"

// Last, so that what pasting or a typo lets through is one clear error instead of assembler noise.
#define asm cudal1_device_code_may_not_hold_inline_assembly
#define __asm cudal1_device_code_may_not_hold_inline_assembly
#define __asm__ cudal1_device_code_may_not_hold_inline_assembly
