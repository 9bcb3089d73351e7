// product_split.cuh: product_pipe<f32_split, ...> by warp groups (wgmma) on GPUs that have it; nobody calls it by name.
//
//   copies ahead (raw) -> b's tile cut in two, high and low, in shared memory; a's in registers -> tensor cores
//   while the tensor cores multiply one tile, the next one is cut; each tile's sums are added up outside of them
//
// A group of 128 threads computes 64 rows; groups beyond BM / 64 share the columns.
#pragma once

namespace cudal1 {
#ifdef CUDAL1_WGMMA
template <int ITEMS> CUDAL1_FN float* cut_tiles() {  // the same memory for all of a block's calls
  __shared__ __align__(1024) float tiles[ITEMS];
  return tiles;
}

// 64 x N results of one group.
template <int BM, int N> struct SplitGroup {
  enum { across = BM / 64 };
  float sum[N / 2], part[N / 2];
  CUDAL1_FN SplitGroup() {
#pragma unroll
    for (int p = 0; p < N / 2; p++) sum[p] = 0.0f;
  }
  static CUDAL1_FN int m(int half) { return warp_id() / 4 % across * 64 + warp_id() % 4 * 16 + lane_id() / 4 + half * 8; }
  static CUDAL1_FN int n0() { return warp_id() / 4 / across * N; }
  static CUDAL1_FN int n(int p) { return n0() + p / 4 * 8 + lane_id() % 4 * 2 + p % 2; }

  // The low parts first, while the sums are small: what tensor cores cut off is then small too.
  CUDAL1_FN void multiply(const unsigned (&high)[4][4], const unsigned (&low)[4][4], float* b_high, float* b_low) {
    const int first = __shfl_sync(0xffffffffu, n0(), 0);
    const unsigned long long at_high = WideTile<f32, N, 32>{b_high}.descriptor(first);
    const unsigned long long at_low = WideTile<f32, N, 32>{b_low}.descriptor(first);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int s = 0; s < 4; s++) {
      wgmma_rows(part, low[s], at_high + s * 2, s);
      wgmma_rows(part, high[s], at_low + s * 2, 1);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) wgmma_rows(part, high[s], at_high + s * 2, 1);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  CUDAL1_FN void finish() {
    wait_for_groups<0>();
#pragma unroll
    for (int p = 0; p < N / 2; p++) asm volatile("" : "+f"(part[p])::"memory");  // nothing reads them before
#pragma unroll
    for (int p = 0; p < N / 2; p++) sum[p] += part[p];
  }
  template <class C> CUDAL1_FN void hand_out(C& c) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const auto row = c(m(half));
#pragma unroll
      for (int p = 0; p < N / 4; p++) row(n(p / 2 * 4 + p % 2), sum[p / 2 * 4 + half * 2 + p % 2]);
    }
  }
};

// A tile's rows as wgmma reads them (WideTile of 128 bytes), cut in two.
template <int ROWS, int THREADS, class Tile> CUDAL1_FN void cut_tile(Tile raw, float* to_high, float* to_low) {
#pragma unroll
  for (int i = 0; i < ROWS * 8 / THREADS; i++) {
    const int at = thread_id() + i * THREADS;
    const int row = Tile::along ? at / 8 : at % ROWS, piece = Tile::along ? at % 8 : at / ROWS;
    unsigned high[4], low[4];
    if constexpr (Tile::along) {
      const uint4 x = *(const uint4*)&raw(row, piece * 4);
      high[0] = x.x, high[1] = x.y, high[2] = x.z, high[3] = x.w;
    } else {
#pragma unroll
      for (int q = 0; q < 4; q++) high[q] = word_of(raw(row, piece * 4 + q));
    }
    cut(high, low);
    const int to = WideTile<f32, ROWS, 32>::place(row, piece);
    *(uint4*)(to_high + to) = make_uint4(high[0], high[1], high[2], high[3]);
    *(uint4*)(to_low + to) = make_uint4(low[0], low[1], low[2], low[3]);
  }
}

template <int BM, int BN, int THREADS, int STAGES, int SA, int SB, class CopierA, class CopierB, class A, class B, class C>
CUDAL1_FN void split_pipe(int taps, int depth, A& a, B& b, C& c CUDAL1_FROM) {
  typedef typename CopierA::Tile TileA;
  typedef typename CopierB::Tile TileB;
  enum { slots = STAGES - 1, pair = 2 * BN * 32 };  // the last stage's memory holds one cut tile, static memory the other
  float* const stages_a = (float*)cudal1_dynamic;
  float* const stages_b = stages_a + slots * TileA::items;
  char* const rest = (char*)(stages_b + slots * TileB::items);
  float* const cut_even = (float*)(rest + (-(int)shared_at(rest) & 1023));
  float* const cut_odd = cut_tiles<pair>();
  CopierA copy_a(a, typename CountTo<CopierA::row_steps>::type());
  CopierB copy_b(b, typename CountTo<CopierB::row_steps>::type());
  typedef SplitGroup<BM, BN * BM / 64 * 128 / THREADS> Group;
  Group group;
  const int total = taps * cdiv(depth, 32);
  int tap = 0, k0 = 0, next = 0;  // of the next tile to be fetched, and its slot
  const auto fetch = [&](int step) {
    if (step < total) {
      const TileA tile_a = {stages_a + next * TileA::items};
      const TileB tile_b = {stages_b + next * TileB::items};
      copy_a.fetch(tile_a, tap, k0, depth);
      copy_b.fetch(tile_b, tap, k0, depth);
      copy_a.put(tile_a);
      copy_b.put(tile_b);
      next = next + 1 == slots ? 0 : next + 1;
      if (++tap == taps) {
        tap = 0;
        k0 += 32;
      }
    }
    end_of_stage();
  };
  int stage = 0;
  const auto turn = [&](int step, float* cut_b, unsigned (&high)[4][4], unsigned (&low)[4][4]) {
    wait_for_stages<slots - 1>();
    __syncthreads(CUDAL1_LINE_ONLY);  // this stage is there, and nobody reads the one before it any more
    const TileA tile_a = {stages_a + stage * TileA::items};
    cut_tile<BN, THREADS>(TileB{stages_b + stage * TileB::items}, cut_b, cut_b + BN * 32);
#pragma unroll
    for (int s = 0; s < 4; s++) {
      load_fragment<f32_split, 0>(high[s], tile_a, group.m(0) - lane_id() / 4, s * 8);
      cut(high[s], low[s]);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores see what was cut
    __syncthreads(CUDAL1_LINE_ONLY);
    if (step) group.finish();
    group.multiply(high, low, cut_b, cut_b + BN * 32);
    fetch(step + slots);  // where this stage was
    stage = stage + 1 == slots ? 0 : stage + 1;
  };
  __syncthreads(CUDAL1_LINE_ONLY);  // an earlier call may still read the stages
#pragma unroll
  for (int s = 0; s < slots; s++) fetch(s);
  unsigned high[2][4][4], low[2][4][4];
  for (int step = 0; step < total; step += 2) {
    turn(step, cut_even, high[0], low[0]);
    if (step + 1 < total) turn(step + 1, cut_odd, high[1], low[1]);
  }
  if (total > 0) group.finish();
  const auto m = [](int p) { return Group::m(p % 4 / 2); };
  const auto n = [](int p) { return Group::n(p); };
  plain_where_nan<SA, SB>(group.sum, taps, depth, a, b, m, n);
  group.hand_out(c);
}
#endif
}  // namespace cudal1
