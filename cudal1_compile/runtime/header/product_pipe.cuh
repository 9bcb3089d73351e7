// product_pipe.cuh: sums of products whose tiles are copied ahead of the tensor cores, STAGES deep.
//
//   product_pipe<T, BM, BN, BK, WM, WN, STAGES, VA, SA, VB, SB>(taps, depth, a, b, c);
//     by all 32 * (BM / WM) * (BN / WN) threads of a block: a warp computes WM x WN (multiples of 16)
//     c(m)(n, v)     is called for every m < BM, n < BN with v = sum over tap < taps and k < depth of
//                    A(m, tap, k) * B(n, tap, k)
//     a(m)(tap)      where A(m, tap, 0) lies in memory; nullptr where it and all of its k are 0
//     SA             from A(m, tap, k) to A(m, tap, k + 1), in elements; 0: a(m)(tap)(k) is asked where each one lies,
//                    -1: so, and neighbouring m lie side by side there
//     VA             elements of one copy: along k if SA is 1, else of neighbouring m; whole vectors are inside or
//                    outside, and aligned to their size (16 bytes at most; a single one of 2 bytes is no copy ahead)
//     T              tf32, bf16, f16, f32_split, tf32_long: elements in memory are those of T's tiles;
//                    tf32_ready, tf32_long_ready: those of b hold no more than tf32, as round_to<tf32>(x) gives them
//   Dynamic shared memory, which the launch must ask for: STAGES tiles of a and of b, in bytes
//     BM * (BK * size + 16) if SA is 1 or 0, else BK * (BM + 8) * size; of b likewise
//
// On the host target a copy is done at once and the products are plain loops.
#pragma once

#ifndef CUDAL1_HOST
extern __shared__ __align__(128) char cudal1_dynamic[];
#endif

namespace cudal1 {
#ifdef CUDAL1_HOST
typedef char* SharedAt;
CUDAL1_FN SharedAt shared_at(void* p) { return (char*)p; }
#else
typedef unsigned SharedAt;
CUDAL1_FN SharedAt shared_at(void* p) { return (unsigned)__cvta_generic_to_shared(p); }
#endif
template <int BYTES, int NEAR = 0> CUDAL1_FN void copy_ahead(SharedAt at, const void* from, bool inside) {
#ifdef CUDAL1_HOST
  typedef typename Word<BYTES>::type Word;
  *(Word*)at = inside ? *(const Word*)from : Word();
#else
  const int bytes = inside ? BYTES : 0;  // the rest becomes 0
  if constexpr (BYTES == 16 && !NEAR)  // past the multiprocessor's own cache
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(bytes) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(bytes) : "memory");
#endif
}
CUDAL1_FN void end_of_stage() {
#ifndef CUDAL1_HOST
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> CUDAL1_FN void wait_for_stages() {
#ifndef CUDAL1_HOST
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

// One stage of an operand, as it lies in memory; the pitches keep eight rows of a fragment on banks of their own.
template <class T, int ROWS, int BK, int S> struct PipeTile {
  typedef typename Arithmetic<T>::item item;
  enum { along = S == 1 || S == 0, pitch = along ? BK + 16 / (int)sizeof(item) : ROWS + 8, items = (along ? ROWS : BK) * pitch };
  enum { row_pitch = along ? pitch : 1, k_pitch = along ? 1 : pitch, rounded = 0 };
  item* at;
  CUDAL1_FN item& operator()(int row, int k) const { return at[row * row_pitch + k * k_pitch]; }
};

template <int... I> struct Count {};
template <int N, int... I> struct CountTo : CountTo<N - 1, N - 1, I...> {};
template <int... I> struct CountTo<0, I...> { typedef Count<I...> type; };

// Who copies what of an operand's tile. The rows of a thread are asked for once, their places once a tile.
template <class T, int ROWS, int BK, int V, int S, int THREADS, class OF, int NEAR = 0> struct Copier {
  typedef PipeTile<T, ROWS, BK, S> Tile;
  typedef typename Tile::item item;
  typedef decltype((*(OF*)0)(0)) Row;
  enum {
    bytes = V * (int)sizeof(item),
    ahead = bytes >= 4,
    wide = Tile::along ? 1 : V,  // rows of one copy
    k_wide = Tile::along ? V : 1,
    k_lanes = Tile::along ? BK / V : ROWS / V < THREADS ? THREADS * V / ROWS : 1,
    row_lanes = THREADS / k_lanes,
    row_steps = cdiv(ROWS, row_lanes * wide),
    k_steps = cdiv(BK, k_lanes * k_wide)
  };
  static_assert(bytes <= 16 && (ahead || V == 1), "product_pipe: a copy is 4, 8 or 16 bytes, or one element");
  Row rows[row_steps];
  item held[ahead ? 1 : row_steps * k_steps];

  static CUDAL1_FN int row(int i) {
    return ((Tile::along ? thread_id() / k_lanes : thread_id() % row_lanes) + i * row_lanes) * wide;
  }
  static CUDAL1_FN int k(int j) {
    return ((Tile::along ? thread_id() % k_lanes : thread_id() / row_lanes) + j * k_lanes) * k_wide;
  }
  static CUDAL1_FN bool in_tile(int i, int j) {
    return (ROWS % (row_lanes * wide) == 0 || row(i) < ROWS) && (BK % (k_lanes * k_wide) == 0 || k(j) < BK);
  }
  template <int... I> CUDAL1_FN Copier(OF& of, Count<I...>) : rows{of(row(I))...} {}

  static CUDAL1_FN const item* at(const item* place, int k0, int j) {
    return place + (k0 + k(0)) * S + j * (k_lanes * k_wide * S);  // a thread's first address and constants
  }
  static CUDAL1_FN bool is_there(const item* place, const item*) { return place != nullptr; }
  template <class F> static CUDAL1_FN const item* at(const F& place, int k0, int j) { return place(k0 + k(j)); }
  template <class F> static CUDAL1_FN bool is_there(const F&, const item* p) { return p != nullptr; }

  CUDAL1_FN void fetch(Tile tile, int tap, int k0, int depth) {
    const SharedAt to = shared_at(&tile(row(0), k(0)));
#pragma unroll
    for (int i = 0; i < row_steps; i++) {
      const auto place = rows[i](tap);
#pragma unroll
      for (int j = 0; j < k_steps; j++) {
        const item* const p = at(place, k0, j);
        const bool inside = is_there(place, p) && (depth % BK == 0 || k0 + k(j) < depth);
        const int away = i * (row_lanes * wide) * Tile::row_pitch + j * (k_lanes * k_wide) * Tile::k_pitch;
        if (!in_tile(i, j)) continue;
        if constexpr (ahead) copy_ahead<bytes, NEAR>(to + away * (int)sizeof(item), p, inside);
        else held[i * k_steps + j] = inside ? *p : item();
      }
    }
  }
  CUDAL1_FN void put(Tile tile) {  // what no copy ahead can move
    if constexpr (!ahead) {
#pragma unroll
      for (int p = 0; p < row_steps * k_steps; p++)
        if (in_tile(p / k_steps, p % k_steps)) tile(row(p / k_steps), k(p % k_steps)) = held[p];
    }
  }
};

#ifndef CUDAL1_HOST
// 16 rows by one step of k: the quarters are (low rows, low k), (high, low), (low, high), (high, high) for a; for b
// the middle two change places, so that two registers side by side are eight columns.
template <class T, int B, class Tile> CUDAL1_FN void load_fragment(unsigned (&r)[4], Tile tile, int row0, int k0) {
  enum { packed = Arithmetic<T>::packed, along = Tile::along, half = Arithmetic<T>::step / 2 };
  const int lane = lane_id(), high_row = B ? lane / 16 : lane / 8 % 2, high_k = B ? lane / 8 % 2 : lane / 16;
  if constexpr (along) {
    const SharedAt at = shared_at(&tile(row0 + lane % 8 + 8 * high_row, k0 + half * high_k));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  } else if constexpr (packed) {
    const SharedAt at = shared_at(&tile(row0 + 8 * high_row, k0 + lane % 8 + 8 * high_k));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
  } else {
#pragma unroll
    for (int q = 0; q < 4; q++)
      r[q] = word_of(tile(row0 + lane / 4 + 8 * (B ? q / 2 : q % 2), k0 + lane % 4 + 4 * (B ? q % 2 : q / 2)));
  }
}
template <class T, class Tile> CUDAL1_FN void load_rows(unsigned (&r)[4], Tile tile, int m0, int i, int k) {
  load_fragment<T, 0>(r, tile, m0 + i * 16, k);
}
CUDAL1_FN void round_fragment(unsigned (&r)[4]) {
#pragma unroll
  for (int q = 0; q < 4; q++) r[q] = __float_as_uint(to_tf32(__uint_as_float(r[q])));
}
#endif

template <class T, int WM, int WN, int BK, int ACROSS> struct PipeWarp {
  typedef Arithmetic<T> Kind;
  enum { MT = WM / 16, NT = WN / 8, steps = BK / Kind::step };
  static_assert(Kind::tensor && WM % 16 == 0 && WN % 16 == 0 && BK % Kind::step == 0,
                "product_pipe: tensor core arithmetic, warps of multiples of 16, BK of 8 (16 for half types)");
  float sum[MT][NT][4];

  CUDAL1_FN PipeWarp() {
#pragma unroll
    for (int p = 0; p < MT * NT * 4; p++) (&sum[0][0][0])[p] = 0.0f;
  }
  static CUDAL1_FN int m(int i, int q) { return warp_id() / ACROSS * WM + i * 16 + lane_id() / 4 + q / 2 * 8; }
  static CUDAL1_FN int n(int j, int q) { return warp_id() % ACROSS * WN + j * 8 + lane_id() % 4 * 2 + q % 2; }

  template <class C> CUDAL1_FN void hand_out(C& c) {
#pragma unroll
    for (int p = 0; p < MT * 2; p++) {
      const int i = p / 2, half = p % 2 * 2;
      const auto row = c(m(i, half));
#pragma unroll
      for (int j = 0; j < NT; j++) {
        row(n(j, 0), sum[i][j][half]);
        row(n(j, 1), sum[i][j][half + 1]);
      }
    }
  }
#ifdef CUDAL1_HOST
  template <class A, class B> void multiply(A a, B b) {
    for (int k = 0; k < BK; k++)
      for (int p = 0; p < MT * NT * 4; p++) {
        const int i = p / (NT * 4), j = p / 4 % NT, q = p % 4;
        sum[i][j][q] = fmaf(operand<1>(a(m(i, q), k)), operand<2>(b(n(j, q), k)), sum[i][j][q]);
      }
  }
  template <int R, class I> static float operand(I x) { return Kind::rounds >= R ? to_tf32(widen(x)) : widen(x); }
#else
  // The fragments of the next step are read while the tensor cores work on this one's.
  template <class A, class B> CUDAL1_FN void multiply(A a, B b) {
    const int m0 = warp_id() / ACROSS * WM, n0 = warp_id() % ACROSS * WN;
    unsigned x[2][MT][4], y[2][NT / 2][4];
    float part[Kind::long_sums ? MT : 1][Kind::long_sums ? NT : 1][4] = {};
    load(a, b, m0, n0, 0, x[0], y[0]);
#pragma unroll
    for (int s = 0; s < steps; s++) {
      if (s + 1 < steps) load(a, b, m0, n0, (s + 1) * Kind::step, x[(s + 1) % 2], y[(s + 1) % 2]);
      if constexpr (Kind::long_sums) add<A::rounded>(part, x[s % 2], y[s % 2]);
      else add<A::rounded>(sum, x[s % 2], y[s % 2]);
    }
    if constexpr (Kind::long_sums) {
#pragma unroll
      for (int p = 0; p < MT * NT * 4; p++) (&sum[0][0][0])[p] += (&part[0][0][0])[p];
    }
  }
  template <class A, class B>
  static CUDAL1_FN void load(A a, B b, int m0, int n0, int k, unsigned (&x)[MT][4], unsigned (&y)[NT / 2][4]) {
#pragma unroll
    for (int i = 0; i < MT; i++) load_rows<T>(x[i], a, m0, i, k);
#pragma unroll
    for (int j = 0; j < NT / 2; j++) load_fragment<T, 1>(y[j], b, n0 + j * 16, k);
  }
  template <int ROUNDED>
  static CUDAL1_FN void add(float (&to)[MT][NT][4], unsigned (&x)[MT][4], unsigned (&y)[NT / 2][4]) {
    if constexpr (Kind::split) {
      unsigned x_low[MT][4], y_low[NT / 2][4];
#pragma unroll
      for (int i = 0; i < MT; i++) cut(x[i], x_low[i]);
#pragma unroll
      for (int j = 0; j < NT / 2; j++) cut(y[j], y_low[j]);
      add_all(to, x_low, y);
      add_all(to, x, y_low);
    }
    if constexpr (Kind::rounds && !ROUNDED) {
#pragma unroll
      for (int i = 0; i < MT; i++) round_fragment(x[i]);
    }
    if constexpr (Kind::rounds == 2) {
#pragma unroll
      for (int j = 0; j < NT / 2; j++) round_fragment(y[j]);
    }
    add_all(to, x, y);
  }
  static CUDAL1_FN void add_all(float (&to)[MT][NT][4], const unsigned (&x)[MT][4], const unsigned (&y)[NT / 2][4]) {
#pragma unroll
    for (int p = 0; p < MT * NT; p++) {
      const int i = p / NT, j = i % 2 ? NT - 1 - p % NT : p % NT;  // there and back: neighbours share a fragment
      const unsigned b[2] = {y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]};
      mma(to[i][j], x[i], b, typename Kind::on_tensor_cores());
    }
  }
#endif
};
// An operand's element at k, as a float; 0 where there is none. A row's places, or where each one lies.
template <int S, class I> CUDAL1_FN float element(const I* place, int k) { return place ? widen(place[k * S]) : 0.0f; }
template <int S, class F> CUDAL1_FN float element(const F& place, int k) {
  const auto at = place(k);
  return at ? widen(*at) : 0.0f;
}
// Those of a thread's sums that are NaN, anew: m(p) and n(p) of its p-th.
template <int SA, int SB, int COUNT, class A, class B, class M, class N>
CUDAL1_FN void plain_where_nan(float (&sum)[COUNT], int taps, int depth, A& a, B& b, const M& m, const N& n) {
  where_nan(sum, [&](int p) {
    const auto row_a = a(m(p));
    const auto row_b = b(n(p));
    const auto of_a = [&](int tap, int k) { return element<SA>(row_a(tap), k); };
    const auto of_b = [&](int tap, int k) { return element<SB>(row_b(tap), k); };
    return plain_sum(taps, depth, of_a, of_b);
  });
}

// f32_split by wgmma (product_split.cuh): whole groups of 64 rows, and room for a cut tile of b where a stage was.
template <class T, int BM, int BN, int BK, int THREADS, int STAGES, int ITEMS> struct ByGroups {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  enum { groups = THREADS / 128, columns = BN * BM / 64 * 128 / (THREADS < 128 ? 128 : THREADS) };
  enum {
    value = Arithmetic<T>::split && BK == 32 && STAGES >= 3 && THREADS % 128 == 0 && BM % 64 == 0 && groups % (BM / 64) == 0 && BN * 8 % THREADS == 0 &&
            (columns == 64 || columns == 128) && 2 * BN * 128 + 1024 <= ITEMS * 4  // narrower ones are no faster so
  };
#else
  enum { value = 0 };
#endif
};
template <int BM, int BN, int THREADS, int STAGES, int SA, int SB, class CopierA, class CopierB, class A, class B, class C>
CUDAL1_FN void split_pipe(int taps, int depth, A& a, B& b, C& c CUDAL1_FROM);
}  // namespace cudal1

template <class T, int BM, int BN, int BK, int WM, int WN, int STAGES, int VA, int SA, int VB, int SB, class A, class B, class C>
CUDAL1_FN void product_pipe(int taps, int depth, A a, B b, C c CUDAL1_FROM) {
  enum { across = BN / WN, threads = 32 * (BM / WM) * across };
  typedef cudal1::Copier<T, BM, BK, VA, SA, threads, A> CopierA;
  typedef cudal1::Copier<T, BN, BK, VB, SB, threads, B> CopierB;
  typedef typename CopierA::Tile TileA;
  typedef typename CopierB::Tile TileB;
  typedef typename TileA::item item;
  typedef cudal1::PipeWarp<T, WM, WN, BK, across> Warp;
  static_assert(BM % WM == 0 && BN % WN == 0 && STAGES >= 2, "product_pipe: whole warps, and two stages or more");
  if constexpr (cudal1::ByGroups<T, BM, BN, BK, threads, STAGES, TileA::items + TileB::items>::value)
    return cudal1::split_pipe<BM, BN, threads, STAGES, SA, SB, CopierA, CopierB>(taps, depth, a, b, c CUDAL1_AT);
  item* const stages_a = (item*)cudal1_dynamic;
  item* const stages_b = stages_a + STAGES * TileA::items;
  CopierA copy_a(a, typename cudal1::CountTo<CopierA::row_steps>::type());
  CopierB copy_b(b, typename cudal1::CountTo<CopierB::row_steps>::type());
  Warp warp;
  const int total = taps * cdiv(depth, BK);
  int tap = 0, k0 = 0;  // of the next tile to be fetched: the window inside, so that its places are still in the cache
  const auto fetch = [&](int stage) {
    copy_a.fetch(TileA{stages_a + stage * TileA::items}, tap, k0, depth);
    copy_b.fetch(TileB{stages_b + stage * TileB::items}, tap, k0, depth);
    if (++tap == taps) {
      tap = 0;
      k0 += BK;
    }
  };
  const auto put = [&](int stage) {
    copy_a.put(TileA{stages_a + stage * TileA::items});
    copy_b.put(TileB{stages_b + stage * TileB::items});
  };
  __syncthreads(CUDAL1_LINE_ONLY);  // an earlier call may still read the stages
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (s < total) {
      fetch(s);
      put(s);
    }
    cudal1::end_of_stage();
  }
  for (int step = 0, stage = 0, next = STAGES - 1; step < total; step++) {
    cudal1::wait_for_stages<STAGES - 2>();
    __syncthreads(CUDAL1_LINE_ONLY);  // everybody's copies of this stage are there, and nobody reads the next one's
    const bool more = step + STAGES - 1 < total;
    if (more) fetch(next);
    cudal1::end_of_stage();
    warp.multiply(TileA{stages_a + stage * TileA::items}, TileB{stages_b + stage * TileB::items});
    if (more) put(next);
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    next = next + 1 == STAGES ? 0 : next + 1;
  }
#ifndef CUDAL1_HOST
  enum { results = Warp::MT * Warp::NT * 4 };
  if constexpr (cudal1::Arithmetic<T>::split) {
    const auto m = [](int p) { return Warp::m(p / 4 / Warp::NT, p % 4); };
    const auto n = [](int p) { return Warp::n(p / 4 % Warp::NT, p % 4); };
    cudal1::plain_where_nan<SA, SB>(*(float(*)[results])warp.sum, taps, depth, a, b, m, n);
  }
#endif
  warp.hand_out(c);
}
