// product_stem.cuh: convolutions of few channels, whose patch of the image a block holds whole.
//
//   product_stem<T, BM, BN, BK, WM, WN, PLANES, HIGH, WIDE, VB, SB>(terms, patch, place, behind, b, c);
//     by all 32 * (BM / WM) * (BN / WN) threads of a block, as product_pipe, with another first operand:
//     v = sum over k < terms of  A(m, k) * B(n, k),  A(m, k) being what lies at place(m) + behind(k) in the patch
//     patch(p)(y)(x) the value in plane p < PLANES and row y < HIGH of the patch, at x < WIDE. It is asked for once a
//                    block and lies, rounded, at (p * HIGH + y) * WIDE + x in shared memory.
//     place(m)       where in the patch the window of m begins; the window lies in the patch for every m < BM
//     behind(k)      how far behind it term k lies
//     T              tf32, bf16, f16, tf32_ready
//     b, VB, SB, c   as in product_pipe, of a single tap
//   Dynamic shared memory: cdiv(PLANES * HIGH * WIDE, 8) * 8 elements, cdiv(terms, BK) * BK ints, 3 tiles of b.
#pragma once

namespace cudal1 {
// A lane's part of a tile's terms: those of each step of k side by side.
template <class T, int BK> struct StemTerms {
  enum { count = BK / 4, packed = Arithmetic<T>::packed };
  static CUDAL1_FN int slot(int k) {
    return packed ? k % 8 / 2 * count + k / 16 * 4 + k % 16 / 8 * 2 + k % 2 : k % 4 * count + k / 4;
  }
};
// The rows of a's fragments within the patch, over a tile's terms. CHECK: they may end before the tile does.
template <class T, int WM, int BK, int CHECK> struct StemRows {
  typedef typename Arithmetic<T>::item item;
  typedef StemTerms<T, BK> Terms;
  enum { rounded = 1, rows = WM / 8 };
  SharedAt row[rows];  // where this lane's rows begin
  int left;
#ifdef CUDAL1_HOST
  const int* behind;  // in bytes
  StemRows(const SharedAt (&begin)[rows], const int* terms, int left) : left(left), behind(terms) {
    for (int i = 0; i < rows; i++) row[i] = begin[i];
  }
  item operator()(int m, int k) const {
    return k < left ? *(const item*)(row[m % WM / 16 * 2 + m % 16 / 8] + behind[Terms::slot(k)]) : item();
  }
#else
  int behind[Terms::count];
  CUDAL1_FN StemRows(const SharedAt (&begin)[rows], const int* terms, int left) : left(left) {
    enum { wide = Terms::count < 4 ? Terms::count : 4 };
#pragma unroll
    for (int i = 0; i < rows; i++) row[i] = begin[i];
#pragma unroll
    for (int j = 0; j < Terms::count; j += wide) {
      Pack<int, wide> part;
      part.word = *(const decltype(part.word)*)(terms + lane_id() % 4 * Terms::count + j);
#pragma unroll
      for (int i = 0; i < wide; i++) behind[j + i] = part.item[i];
    }
  }
#endif
};
#ifndef CUDAL1_HOST
template <class T, int WM, int BK, int CHECK>
CUDAL1_FN void load_rows(unsigned (&r)[4], const StemRows<T, WM, BK, CHECK>& rows, int, int i, int k0) {
#pragma unroll
  for (int q = 0; q < 4; q++) {
    const SharedAt row = rows.row[i * 2 + q % 2];
    if constexpr (Arithmetic<T>::packed) {
      unsigned short low, high;
      const int j = k0 / 4 + q / 2 * 2, k = k0 + lane_id() % 4 * 2 + q / 2 * 8;
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(low) : "r"(row + rows.behind[j]));
      asm volatile("ld.shared.u16 %0, [%1];" : "=h"(high) : "r"(row + rows.behind[j + 1]));
      r[q] = !CHECK || k + 1 < rows.left ? low | (unsigned)high << 16 : k < rows.left ? low : 0;
    } else {
      asm volatile("ld.shared.b32 %0, [%1];" : "=r"(r[q]) : "r"(row + rows.behind[k0 / 4 + q / 2]));
      if (CHECK && k0 + lane_id() % 4 + q / 2 * 4 >= rows.left) r[q] = 0;
    }
  }
}
#endif

// A warp reads 32 elements of a row at once, and several rows and planes before it stores them.
template <class T, int PLANES, int HIGH, int WIDE, int WARPS> struct StemPatch {
  typedef typename Arithmetic<T>::item item;
  enum { lanes = cdiv(WIDE, 32), parts = HIGH * lanes, share = cdiv(parts, WARPS), items = PLANES * HIGH * WIDE };
  enum { most = share < 16 ? 16 / share : 1, planes = most < PLANES ? most : PLANES };
  template <class P> static CUDAL1_FN void read(item* to, P& patch) {
#pragma unroll 1
    for (int p0 = 0; p0 < PLANES; p0 += planes) {
      float held[planes][share];
#pragma unroll
      for (int p = 0; p < planes; p++) {
        if (p0 + p >= PLANES) break;
        const auto plane = patch(p0 + p);
#pragma unroll
        for (int i = 0; i < share; i++) {
          const int part = warp_id() + i * WARPS, x = part % lanes * 32 + lane_id();
          if (part < parts && x < WIDE) held[p][i] = (float)plane(part / lanes)(x);
        }
      }
#pragma unroll
      for (int q = 0; q < planes * share; q++) {
        const int p = p0 + q / share, part = warp_id() + q % share * WARPS, x = part % lanes * 32 + lane_id();
        if (p < PLANES && part < parts && x < WIDE)
          to[(p * HIGH + part / lanes) * WIDE + x] = ToItem<T>::from(held[q / share][q % share]);
      }
    }
  }
};
}  // namespace cudal1

template <class T, int BM, int BN, int BK, int WM, int WN, int PLANES, int HIGH, int WIDE, int VB, int SB, class P,
          class A, class K, class B, class C>
CUDAL1_FN void product_stem(int terms, P patch, A place, K behind, B b, C c CUDAL1_FROM) {
  enum { across = BN / WN, warps = (BM / WM) * across, threads = 32 * warps, stages = 3 };
  typedef cudal1::StemPatch<T, PLANES, HIGH, WIDE, warps> Patch;
  typedef cudal1::PipeWarp<T, WM, WN, BK, across> Warp;
  typedef cudal1::Copier<T, BN, BK, VB, SB, threads, B, 1> CopierB;  // all blocks read the same weight
  typedef typename CopierB::Tile TileB;
  typedef typename TileB::item item;
  static_assert(BM % WM == 0 && BN % WN == 0, "product_stem: whole warps");
  const int steps = cdiv(terms, BK);
  item* const image = (item*)cudal1_dynamic;
  int* const places = (int*)(image + cdiv((int)Patch::items, 8) * 8);
  item* const stages_b = (item*)(places + steps * BK);
  CopierB copy_b(b, typename cudal1::CountTo<CopierB::row_steps>::type());
  Warp warp;
  const auto fetch = [&](int step) {
    const TileB to = {stages_b + step % stages * TileB::items};
    if (step < steps) {
      copy_b.fetch(to, 0, step * BK, terms);
      copy_b.put(to);
    }
    cudal1::end_of_stage();
  };
  __syncthreads(CUDAL1_LINE_ONLY);  // an earlier call may still read the patch
#pragma unroll
  for (int s = 0; s < stages - 1; s++) fetch(s);
  Patch::read(image, patch);
  for (int k = thread_id(); k < steps * BK; k += threads)
    places[k / BK * BK + cudal1::StemTerms<T, BK>::slot(k % BK)] = k < terms ? behind(k) * (int)sizeof(item) : 0;
  cudal1::SharedAt row[WM / 8];
#pragma unroll
  for (int i = 0; i < WM / 8; i++) {
    const int m = warp_id() / across * WM + i / 2 * 16 + lane_id() / 4 + i % 2 * 8;
    row[i] = cudal1::shared_at(image) + place(m) * (int)sizeof(item);
#ifndef CUDAL1_HOST
    asm volatile("" : "+r"(row[i]));  // not to be reckoned anew in every step
#endif
  }
  for (int step = 0; step < steps; step++) {
    cudal1::wait_for_stages<stages - 2>();
    __syncthreads(CUDAL1_LINE_ONLY);  // this stage (and the patch) is there, and nobody reads the next one's
    fetch(step + stages - 1);
    const TileB tile = {stages_b + step % stages * TileB::items};
    const int left = terms - step * BK;
    if (left >= BK) warp.multiply(cudal1::StemRows<T, WM, BK, 0>(row, places + step * BK, left), tile);
    else warp.multiply(cudal1::StemRows<T, WM, BK, 1>(row, places + step * BK, left), tile);
  }
  warp.hand_out(c);
}
