// product.cuh: sums of products in tiles, for matrix products and convolutions of every kind.
//
//   product_tile<T, BM, BN, BK, AK, BT>(depth, a, b, c);        by all 256 threads of a block
//     c(m, n, v)  is called for every m < BM, n < BN with  v = sum over k < depth of a(m)(k) * b(n)(k)
//     a(m), b(n)  return a functor of k: an operand's element, 0 where there is none. m and n may lie past the
//                 tensor's end: the functors then answer 0, and c stores nothing.
//   product_taps<T, BM, BN, BK, AK, BT>(taps, depth, a, b, c);
//     the same over two sums: v = sum over tap < taps and k < depth of a(m)(tap)(k) * b(n)(tap)(k). What depends
//     on a window's place alone is computed once a tap, not once an element: for depths of BK and more.
//     T           the arithmetic: f32 (fused multiply-adds), tf32, bf16, f16 (tensor cores, sums in float32),
//                 f32_split (tensor cores on float32 operands cut into two tf32 each, long sums in float32),
//                 tf32_long (tf32 with long sums in float32: for more than a thousand terms)
//     AK, BT      neighbouring threads that read a (b) along k; 1: neighbours read along m (along n)
//   window_bits(first, size, window)
//     a word in which bit w is set where 0 <= first + w < size, for w < window; windows of 30 at most
//
// On the host target the same blocks stage the same tiles; only the products within a warp are plain loops.
#pragma once

struct tf32 {};
struct tf32_long {};
struct tf32_ready {};
struct tf32_long_ready {};
struct f32_split {};

namespace cudal1 {
// item: what a tile holds; step: k of one tensor core operation; packed: two items a register; rounds: operands that
// are rounded in registers, of product_pipe; split: they are cut in two; long_sums: tensor cores cut sums off instead
// of rounding them, so short ones are added up outside
template <class ITEM, int TENSOR, int STEP, int ROUNDS, int SPLIT, int LONG, class ON> struct Kind {
  typedef ITEM item;
  typedef ON on_tensor_cores;
  enum { tensor = TENSOR, step = STEP, packed = sizeof(ITEM) == 2, rounds = ROUNDS, split = SPLIT, long_sums = LONG };
};
template <class T> struct Arithmetic;
template <> struct Arithmetic<f32> : Kind<f32, 0, 1, 0, 0, 0, f32> {};
template <> struct Arithmetic<tf32> : Kind<f32, 1, 8, 2, 0, 0, tf32> {};
template <> struct Arithmetic<tf32_ready> : Kind<f32, 1, 8, 1, 0, 0, tf32> {};
template <> struct Arithmetic<tf32_long> : Kind<f32, 1, 8, 2, 0, 1, tf32> {};
template <> struct Arithmetic<tf32_long_ready> : Kind<f32, 1, 8, 1, 0, 1, tf32> {};
template <> struct Arithmetic<f32_split> : Kind<f32, 1, 8, 0, 1, 1, tf32> {};
template <> struct Arithmetic<f16> : Kind<f16, 1, 16, 0, 0, 0, f16> {};
template <> struct Arithmetic<bf16> : Kind<bf16, 1, 16, 0, 0, 0, bf16> {};

CUDAL1_FN float to_tf32(float x) {  // to nearest, ties away from zero
#ifdef CUDAL1_HOST
  unsigned u = __float_as_uint(x);
  return (u & 0x7f800000) == 0x7f800000 ? x : __uint_as_float((u + 0x1000) & 0xffffe000);
#else
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return __uint_as_float(r);
#endif
}
template <> struct Compute<tf32> { typedef float type; };
template <> struct Narrow<tf32> {  // round_to<tf32>(x)
  template <class V> static CUDAL1_FN float from(V v) { return to_tf32((float)v); }
};
template <class T> struct ToItem {
  static CUDAL1_FN typename Arithmetic<T>::item from(float x) {
    if constexpr (Arithmetic<T>::rounds) return to_tf32(x);
    else return Narrow<typename Arithmetic<T>::item>::from(x);
  }
};

// An operand's tile, ROWS (m or n) by BK, in two stages. The pitches keep a warp's fragments off each other's banks.
template <class T, int ROWS, int BK> struct Staged {
  typedef typename Arithmetic<T>::item item;
  enum { packed = Arithmetic<T>::packed, pitch = (packed ? BK : ROWS) + 8, items = (packed ? ROWS : BK) * pitch };
  item* at;
  CUDAL1_FN item& operator()(int row, int k) const { return at[packed ? row * pitch + k : k * pitch + row]; }
};

// How 256 threads read a tile: ALONG neighbours along k, or, if that is 1, neighbours along the rows.
template <int ROWS, int BK, int ALONG> struct Readers {
  enum {
    across = ALONG > 1 ? 256 / ALONG : ROWS < 256 ? ROWS : 256,
    deep = 256 / across,
    row_steps = cdiv(ROWS, across),
    k_steps = cdiv(BK, deep),
    count = row_steps * k_steps
  };
  static CUDAL1_FN int row(int i) { return (ALONG > 1 ? thread_id() / deep : thread_id() % across) + i * across; }
  static CUDAL1_FN int k(int j) { return (ALONG > 1 ? thread_id() % deep : thread_id() / across) + j * deep; }
  static CUDAL1_FN bool in_tile(int i, int j) {
    return (ROWS % across == 0 || row(i) < ROWS) && (BK % deep == 0 || k(j) < BK);
  }
  template <class R> static CUDAL1_FN void read(const R& rows, int tap, int k0, int depth, float (&v)[count]) {
#pragma unroll
    for (int i = 0; i < row_steps; i++) {
      const auto element = rows(row(i))(tap);
#pragma unroll
      for (int j = 0; j < k_steps; j++)
        v[i * k_steps + j] = in_tile(i, j) && k0 + k(j) < depth ? (float)element(k0 + k(j)) : 0.0f;
    }
  }
  template <class T> static CUDAL1_FN void write(Staged<T, ROWS, BK> tile, const float (&v)[count]) {
#pragma unroll
    for (int i = 0; i < row_steps; i++)
#pragma unroll
      for (int j = 0; j < k_steps; j++)
        if (in_tile(i, j)) tile(row(i), k(j)) = ToItem<T>::from(v[i * k_steps + j]);
  }
};

#ifndef CUDAL1_HOST
#define CUDAL1_MMA(TYPE, SHAPE)                                                                                \
  CUDAL1_FN void mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2], TYPE) {                    \
    asm("mma.sync.aligned." SHAPE " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                     \
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                                       \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                   \
  }
CUDAL1_MMA(tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
CUDAL1_MMA(f16, "m16n8k16.row.col.f32.f16.f16.f32")
CUDAL1_MMA(bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
#undef CUDAL1_MMA
CUDAL1_FN unsigned word_of(const f32& x) { return __float_as_uint(x); }
CUDAL1_FN unsigned word_of(const f16& x) { return *(const unsigned*)&x; }  // with its neighbour along k
CUDAL1_FN unsigned word_of(const bf16& x) { return *(const unsigned*)&x; }
// x = high + low, both as tf32: high is cut off, low rounded. An infinite one times the other's low part is of either
// sign, or NaN: whoever finds NaN among its sums asks for those anew (plain_sum).
template <int N> CUDAL1_FN void cut(unsigned (&high)[N], unsigned (&low)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    const unsigned x = high[i];
    high[i] = x & 0xffffe000;
    low[i] = __float_as_uint(__uint_as_float(x) - __uint_as_float(high[i])) + 0x1000;
  }
}
#endif

// Those of the sums that are NaN, anew: anew(p) is the p-th. Each lane has its own ones.
template <int N, class F> CUDAL1_FN void where_nan(float (&v)[N], const F& anew) {
#pragma unroll 1
  for (int p = -1;;) {
    int next = N;
#pragma unroll
    for (int q = N - 1; q >= 0; q--) next = q > p && v[q] != v[q] ? q : next;
    if (next == N) break;
    p = next;
    const float found = anew(p);
#pragma unroll
    for (int q = 0; q < N; q++) v[q] = q == p ? found : v[q];
  }
}
// A sum of products as float32 has it; a(tap, k) and b(tap, k) are the factors.
template <class A, class B> CUDAL1_FN float plain_sum(int taps, int depth, const A& a, const B& b) {
  float sum = 0.0f;
#pragma unroll 1
  for (int tap = 0; tap < taps; tap++)
#pragma unroll 1
    for (int k = 0; k < depth && sum == sum; k++) sum = fmaf(a(tap, k), b(tap, k), sum);
  return sum;
}

// What one of the 8 warps computes: MT x NT pieces of 16 x 8, four results of each in a lane.
template <class T, int BM, int BN, int BK> struct WarpTile {
  typedef Arithmetic<T> Kind;
  enum { across = BN >= 128 ? 4 : BN >= 32 ? 2 : 1, MT = BM * across / 128, NT = BN / across / 8 };
  static_assert(MT > 0 && NT > 0 && BM * across % 128 == 0 && BN % (8 * across) == 0 && BK % Kind::step == 0,
                "product_tile: BM is a multiple of 128 (64 from BN 32 on, 32 from BN 128 on), BN of 8 (32, 128), "
                "BK of 8 (16 for half types)");
  float sum[MT][NT][4];

  CUDAL1_FN WarpTile() {
#pragma unroll
    for (int p = 0; p < MT * NT * 4; p++) (&sum[0][0][0])[p] = 0.0f;
  }
  static CUDAL1_FN int m(int i, int q) { return (warp_id() / across * MT + i) * 16 + lane_id() / 4 + q / 2 * 8; }
  static CUDAL1_FN int n(int j, int q) { return (warp_id() % across * NT + j) * 8 + lane_id() % 4 * 2 + q % 2; }

  CUDAL1_FN void multiply(Staged<T, BM, BK> a, Staged<T, BN, BK> b) {
#ifndef CUDAL1_HOST
    if constexpr (Kind::tensor) return tensor(a, b);
#endif
#pragma unroll 4
    for (int k = 0; k < BK; k++) {
      float x[MT][2], y[NT][2];
#pragma unroll
      for (int p = 0; p < MT * 2; p++) x[p / 2][p % 2] = widen(a(m(p / 2, p % 2 * 2), k));
#pragma unroll
      for (int p = 0; p < NT * 2; p++) y[p / 2][p % 2] = widen(b(n(p / 2, p % 2), k));
#pragma unroll
      for (int p = 0; p < MT * NT * 4; p++) {
        const int i = p / (NT * 4), j = p / 4 % NT, q = p % 4;
        sum[i][j][q] = fmaf(x[i][q / 2], y[j][q % 2], sum[i][j][q]);
      }
    }
  }
#ifndef CUDAL1_HOST
  CUDAL1_FN void tensor(Staged<T, BM, BK> a, Staged<T, BN, BK> b) {
    const int m0 = m(0, 0), n0 = warp_id() % across * NT * 8 + lane_id() / 4;
    const int t = lane_id() % 4 * (Kind::packed + 1), half = Kind::step / 2;
    float short_sum[Kind::long_sums ? MT : 1][Kind::long_sums ? NT : 1][4] = {};
#pragma unroll
    for (int k = t; k < BK + t; k += Kind::step) {
      unsigned x[MT][4], y[NT][2];
#pragma unroll
      for (int p = 0; p < MT * 4; p++) x[p / 4][p % 4] = word_of(a(m0 + p / 4 * 16 + p % 2 * 8, k + p % 4 / 2 * half));
#pragma unroll
      for (int p = 0; p < NT * 2; p++) y[p / 2][p % 2] = word_of(b(n0 + p / 2 * 8, k + p % 2 * half));
      if constexpr (Kind::split) {
        unsigned x_low[MT][4], y_low[NT][2];
#pragma unroll
        for (int i = 0; i < MT; i++) cut(x[i], x_low[i]);
#pragma unroll
        for (int j = 0; j < NT; j++) cut(y[j], y_low[j]);
#pragma unroll
        for (int p = 0; p < MT * NT; p++) {
          mma(short_sum[p / NT][p % NT], x_low[p / NT], y[p % NT], tf32());
          mma(short_sum[p / NT][p % NT], x[p / NT], y_low[p % NT], tf32());
          mma(short_sum[p / NT][p % NT], x[p / NT], y[p % NT], tf32());
        }
      } else {
#pragma unroll
        for (int p = 0; p < MT * NT; p++) {
          if constexpr (Kind::long_sums) mma(short_sum[p / NT][p % NT], x[p / NT], y[p % NT], tf32());
          else mma(sum[p / NT][p % NT], x[p / NT], y[p % NT], typename Kind::on_tensor_cores());
        }
      }
    }
    if constexpr (Kind::long_sums) {
#pragma unroll
      for (int p = 0; p < MT * NT * 4; p++) (&sum[0][0][0])[p] += (&short_sum[0][0][0])[p];
    }
  }
#endif
};
}  // namespace cudal1

CUDAL1_FN int window_bits(int first, int size, int window) {
  const int from = max(-first, 0), to = min(size - first, window);
  return from < to ? (1 << to) - (1 << from) : 0;
}

template <class T, int BM, int BN, int BK, int AK, int BT, class A, class B, class C>
CUDAL1_FN void product_taps(int taps, int depth, A a, B b, C c CUDAL1_FROM) {
  typedef cudal1::Staged<T, BM, BK> TileA;
  typedef cudal1::Staged<T, BN, BK> TileB;
  typedef cudal1::Readers<BM, BK, AK> ReadersA;
  typedef cudal1::Readers<BN, BK, BT> ReadersB;
  typedef cudal1::WarpTile<T, BM, BN, BK> Tile;
  __shared__ __align__(16) typename TileA::item staged_a[2 * TileA::items];
  __shared__ __align__(16) typename TileB::item staged_b[2 * TileB::items];
  float next_a[ReadersA::count], next_b[ReadersB::count];
  Tile tile;
  ReadersA::read(a, 0, 0, depth, next_a);
  ReadersB::read(b, 0, 0, depth, next_b);
  __syncthreads(CUDAL1_LINE_ONLY);  // an earlier call may still read the stages
  for (int tap = 0, k0 = 0, stage = 0; tap < taps; stage ^= 1) {
    const TileA tile_a = {staged_a + stage * TileA::items};
    const TileB tile_b = {staged_b + stage * TileB::items};
    ReadersA::template write<T>(tile_a, next_a);
    ReadersB::template write<T>(tile_b, next_b);
    __syncthreads(CUDAL1_LINE_ONLY);  // one is enough: two stages, so nobody writes what others still multiply
    k0 += BK;
    if (k0 >= depth) {
      k0 = 0;
      tap++;
    }
    if (tap < taps) {
      ReadersA::read(a, tap, k0, depth, next_a);
      ReadersB::read(b, tap, k0, depth, next_b);
    }
    tile.multiply(tile_a, tile_b);
  }
  enum { results = Tile::MT * Tile::NT * 4 };
#ifndef CUDAL1_HOST
  if constexpr (cudal1::Arithmetic<T>::split)
    cudal1::where_nan(*(float(*)[results])tile.sum, [&](int p) {
      const auto row_a = a(Tile::m(p / 4 / Tile::NT, p % 4));
      const auto row_b = b(Tile::n(p / 4 % Tile::NT, p % 4));
      const auto of_a = [&](int tap, int k) { return (float)row_a(tap)(k); };
      const auto of_b = [&](int tap, int k) { return (float)row_b(tap)(k); };
      return cudal1::plain_sum(taps, depth, of_a, of_b);
    });
#endif
#pragma unroll
  for (int p = 0; p < results; p++) {
    const int i = p / 4 % Tile::MT, j = p / 4 / Tile::MT, q = p % 4;
    c(Tile::m(i, q), Tile::n(j, q), tile.sum[i][j][q]);
  }
}

template <class T, int BM, int BN, int BK, int AK, int BT, class A, class B, class C>
CUDAL1_FN void product_tile(int depth, A a, B b, C c CUDAL1_FROM) {
  const auto rows_a = [&](int m) {
    const auto row = a(m);
    return [=](int) { return row; };
  };
  const auto rows_b = [&](int n) {
    const auto row = b(n);
    return [=](int) { return row; };
  };
  product_taps<T, BM, BN, BK, AK, BT>(1, depth, rows_a, rows_b, c CUDAL1_AT);
}
