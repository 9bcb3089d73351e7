// product_patch.cuh: convolutions whose window walks over a patch of the image in shared memory.
//
//   product_patch<T, BM, BN, BK, WM, WN, TAPS, GROUP, L, VB, SB>(outer, depth, patch, place, b, c);
//     by all 32 * (BM / WM) * (BN / WN) threads of a block, as product_pipe, with other operands:
//     v = sum over o < outer, tap < TAPS and k < depth of  patch(place(m)(o, tap))(o)(k) * B(n, o * TAPS + tap, k)
//     patch(p)(o)    returns a functor of k: the value at place p < L of the patch, channel k. It is asked once for
//                    all TAPS: a value is computed, rounded and stored to shared memory once.
//     place(m)(o, tap)  where in the patch m's element of this tap lies; -1 where there is none
//     b, VB, SB, c   as in product_pipe
//     GROUP          taps between two barriers: more than one for small BK
//   Dynamic shared memory: (2 * L + 1) * (BK * size + 16) bytes, then 3 * GROUP tiles of b.
//   larger(a, b): max(a, b) of a launch expression, as a constant that L may be made of
#pragma once

__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

namespace cudal1 {
// The patch in two stages, k side by side; the row behind them is 0.
template <class T, int L, int BK> struct Patch {
  typedef typename Arithmetic<T>::item item;
  enum { wide = 16 / (int)sizeof(item), pitch = BK + wide, items = L * pitch };
  item* at;
};

// Parts of the next patch: each is read ahead of a step's products and stored behind them.
template <class T, int L, int BK, int PARTS, int THREADS> struct PatchPart {
  typedef Patch<T, L, BK> Store;
  typedef typename Store::item item;
  enum { wide = Store::wide, vectors = L * (BK / wide), count = cdiv(vectors, THREADS * PARTS) };
  Pack<item, wide> held[count];

  static CUDAL1_FN int vector(int part, int i) { return (part * count + i) * THREADS + thread_id(); }
  template <class P> CUDAL1_FN void read(P& patch, int part, int o, int k0, int depth) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int x = vector(part, i), k = k0 + x / L * wide;
      if (x >= vectors) continue;
      const auto element = patch(x % L)(o);
#pragma unroll
      for (int j = 0; j < wide; j++)
        held[i].item[j] = ToItem<T>::from(depth % BK == 0 || k + j < depth ? (float)element(k + j) : 0.0f);
    }
  }
  CUDAL1_FN void write(Store to, int part) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int x = vector(part, i);
      if (x < vectors) *(decltype(held[i].word)*)(to.at + x % L * Store::pitch + x / L * wide) = held[i].word;
    }
  }
};

// The rows of a's fragments within the patch, for one tap.
#ifdef CUDAL1_HOST
template <class T, int MT, int PITCH, class A> struct PatchRows {
  typedef typename Arithmetic<T>::item item;
  enum { rounded = 1 };
  A& place;
  item *patch, *zero;
  int o, tap;
  item operator()(int m, int k) const {
    const int p = place(m)(o, tap);
    return p < 0 ? zero[k] : patch[p * PITCH + k];
  }
};
#else
template <class T, int MT, int PITCH, class A> struct PatchRows {
  enum { rounded = 1 };
  SharedAt at[MT];  // where this lane's row of each fragment begins
};
template <class T, int MT, int PITCH, class A>
CUDAL1_FN void load_rows(unsigned (&r)[4], const PatchRows<T, MT, PITCH, A>& rows, int, int i, int k) {
  const SharedAt at = rows.at[i] + k * (int)sizeof(typename Arithmetic<T>::item);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at));
}
#endif

// Asks for the places of a lane's rows once, and for their taps each time.
template <class T, int WM, int ACROSS, int PITCH, class A> struct Places {
  typedef typename Arithmetic<T>::item item;
  typedef PatchRows<T, WM / 16, PITCH, A> Rows;
#ifdef CUDAL1_HOST
  A& place;
  template <int... I> Places(A& place, Count<I...>) : place(place) {}
  Rows at(item* patch, item* zero, int o, int tap) const { return Rows{place, patch, zero, o, tap}; }
#else
  typedef decltype((*(A*)0)(0)) Row;
  Row rows[WM / 16];
  template <int... I> CUDAL1_FN Places(A& place, Count<I...>)
      : rows{place(warp_id() / ACROSS * WM + I * 16 + lane_id() % 16)...} {}
  CUDAL1_FN Rows at(item* patch, item* zero, int o, int tap) const {
    const int k = lane_id() / 16 * (Arithmetic<T>::step / 2);
    const SharedAt to_patch = shared_at(patch + k), to_zero = shared_at(zero + k);
    Rows found;
#pragma unroll
    for (int i = 0; i < WM / 16; i++) {
      const int p = rows[i](o, tap);
      found.at[i] = p < 0 ? to_zero : to_patch + p * (PITCH * (int)sizeof(item));
    }
    return found;
  }
#endif
};
}  // namespace cudal1

template <class T, int BM, int BN, int BK, int WM, int WN, int TAPS, int GROUP, int L, int VB, int SB, class P, class A,
          class B, class C>
CUDAL1_FN void product_patch(int outer, int depth, P patch, A place, B b, C c CUDAL1_FROM) {
  enum { across = BN / WN, threads = 32 * (BM / WM) * across, stages = 3, groups = cdiv(TAPS, GROUP) };
  typedef cudal1::PipeWarp<T, WM, WN, BK, across> Warp;
  typedef cudal1::Copier<T, BN, BK, VB, SB, threads, B> CopierB;
  typedef typename CopierB::Tile TileB;
  typedef cudal1::Patch<T, L, BK> Store;
  typedef typename Store::item item;
  static_assert(BM % WM == 0 && BN % WN == 0 && BK % Store::wide == 0, "product_patch: whole warps and vectors");
  item* const patches = (item*)cudal1_dynamic;
  item* const zero = patches + 2 * Store::items;
  item* const stages_b = zero + Store::pitch;
  CopierB copy_b(b, typename cudal1::CountTo<CopierB::row_steps>::type());
  cudal1::PatchPart<T, L, BK, groups, threads> part;
  Warp warp;
  const int chunks = cdiv(depth, BK), total = outer * chunks * groups;
  const auto tile_b = [&](int step, int g) {
    return TileB{stages_b + (step % stages * GROUP + g) * TileB::items};
  };
  const auto fetch = [&](int step) {
    const int o = step / (chunks * groups), k0 = step / groups % chunks * BK;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
      const int tap = step % groups * GROUP + g;
      if (tap >= TAPS) break;
      copy_b.fetch(tile_b(step, g), o * TAPS + tap, k0, depth);
      copy_b.put(tile_b(step, g));
    }
    cudal1::end_of_stage();
  };
  __syncthreads(CUDAL1_LINE_ONLY);  // an earlier call may still read the stages
  if (thread_id() < BK) zero[thread_id()] = item();
#pragma unroll
  for (int s = 0; s < stages - 1; s++) {
    if (s < total) fetch(s);
    else cudal1::end_of_stage();
  }
#pragma unroll 1
  for (int half = 0; half < 2; half++) {
    cudal1::PatchPart<T, L, BK, 2, threads> first;
    first.read(patch, half, 0, 0, depth);
    first.write(Store{patches}, half);
  }
  const cudal1::Places<T, WM, across, Store::pitch, A> places(place, typename cudal1::CountTo<WM / 16>::type());
  for (int step = 0; step < total; step++) {
    cudal1::wait_for_stages<stages - 2>();
    __syncthreads(CUDAL1_LINE_ONLY);  // this stage and this patch are there, and nobody reads the next one's
    const int chunk = step / groups, group = step % groups;
    const bool next = chunk + 1 < outer * chunks;
    if (step + stages - 1 < total) fetch(step + stages - 1);
    else cudal1::end_of_stage();
    if (next) part.read(patch, group, (chunk + 1) / chunks, (chunk + 1) % chunks * BK, depth);
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
      const int tap = group * GROUP + g;
      if (tap >= TAPS) break;
      warp.multiply(places.at(patches + chunk % 2 * Store::items, zero, chunk / chunks, tap), tile_b(step, g));
    }
    if (next) part.write(Store{patches + (chunk + 1) % 2 * Store::items}, group);
  }
  warp.hand_out(c);
}
