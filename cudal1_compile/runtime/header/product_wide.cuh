// product_wide.cuh: sums of products by warp groups of 128 threads (wgmma), tiles copied ahead, STAGES deep.
//
//   product_wide<T, BM, BN, BK, STAGES, NEAR = 0, TAPS = 1, ROUNDS = 0, ALONG = 0>(taps, depth, a, b, c);
//                                                                                      by all 2 * BM threads of a block
//     as product_pipe: c(m)(n, v) gets v = sum over tap < taps and k < depth of A(m, tap, k) * B(n, tap, k)
//     a(m)(tap)  where A(m, tap, 0) lies in memory, the other k behind it; nullptr where all of them are 0
//     T          bf16, f16, tf32, tf32_long: float32 elements hold no more than tf32, as round_to<tf32>(x) gives them
//     BM, BN     a multiple of 64; 16, 32, 64, 128, 192 or 256
//     BK         32, 64 or 128 bytes; depth is whole vectors of 16 bytes
//     NEAR       1: A's rows go through the multiprocessor's own cache, for neighbouring taps that read the same ones
//     TAPS       side by side in a tile's row, each of BK / TAPS elements (whole vectors): 2 or more if depth is small
//     ROUNDS     1: A's elements are any float32, rounded to TF32 on their way
//     ALONG      0: neighbouring threads call c with neighbouring m; 1: with neighbouring n
//                Along n a store may take four columns at once: c(m)(n, float (&v)[4]) gets the sums of n to n + 3, where n
//                is a multiple of 4. Those of several rows follow each other: vstore<4>(p, v, inside) lets their loads
//                be on their way together
//   Dynamic shared memory: 1024 + STAGES * (BM + BN) * BK * size bytes, but 1024 + BN * (BM + 4) * 4 at least,
//   along n 1024 + BM * (BN + 8) * 4
//
//   turn_tile<R, C, THREADS>(from, to);                                                by all THREADS threads of a block
//     to(r, c, from(r, c)) for every r < R, c < C: read with neighbouring c side by side, written with neighbouring r
//
// GPUs without wgmma multiply with mma on the same tiles; on the host target the products are plain loops.
#pragma once

namespace cudal1 {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define CUDAL1_WGMMA
#endif

#ifndef CUDAL1_HOST
// Where a tile lies, as wgmma wants to know it: along k and along its rows, in pieces of 16 bytes to the next eight.
CUDAL1_FN unsigned long long describe(const void* tile, int along, int across) {
  return (shared_at((void*)tile) & 0x3ffff) >> 4 | (unsigned long long)along << 16 | (unsigned long long)across << 32;
}
#endif

// A tile of rows whose pieces of 16 bytes change places within eight rows, as the tensor cores read them without
// meeting on a bank: a row's pieces are exchanged by the bits of its address above 128.
template <class T, int ROWS, int BK> struct WideTile {
  typedef typename Arithmetic<T>::item item;
  enum { wide = 16 / (int)sizeof(item), pieces = BK / wide, row_bytes = BK * (int)sizeof(item), items = ROWS * BK };
  enum { along = 1 };
  static_assert(pieces == 2 || pieces == 4 || pieces == 8, "product_wide: BK is 32, 64 or 128 bytes");
  item* at;
  static CUDAL1_FN int place(int row, int piece) { return row * BK + (piece ^ (row * row_bytes / 128 % pieces)) * wide; }
  CUDAL1_FN item& operator()(int row, int k) const { return at[place(row, k / wide) + k % wide]; }
#ifndef CUDAL1_HOST
  enum { next = 2 };  // from a step's descriptor to the next one's
  CUDAL1_FN unsigned long long descriptor(int row) const {
    const unsigned long long mode = row_bytes == 128 ? 1 : row_bytes == 64 ? 2 : 3;
    return describe(at + row * BK, 1, 8 * row_bytes / 16) | mode << 62;
  }
#endif
};

// Who copies what of a tile: neighbouring threads a row's pieces.
template <class T, int ROWS, int BK, int THREADS, int NEAR, int TAPS, class OF> struct WideCopier {
  typedef WideTile<T, ROWS, BK> Tile;
  typedef typename Tile::item item;
  typedef decltype((*(OF*)0)(0)) Row;
  enum { pieces = Tile::pieces, row_lanes = THREADS / pieces, steps = cdiv(ROWS, row_lanes) };
  enum { tap_pieces = pieces / TAPS, tap_depth = BK / TAPS };
  Row rows[steps];
  template <int... I> CUDAL1_FN WideCopier(OF& of, Count<I...>) : rows{of(row(I))...} {}
  static CUDAL1_FN int row(int i) { return thread_id() / pieces + i * row_lanes; }

  CUDAL1_FN void fetch(Tile tile, int taps, int first, int k0, int depth) {
    const int piece = thread_id() % pieces, k = k0 + piece % tap_pieces * Tile::wide, tap = first + piece / tap_pieces;
    const bool inside = (TAPS == 1 || tap < taps) && (depth % tap_depth == 0 || k < depth);
    const SharedAt to = shared_at(tile.at + Tile::place(row(0), piece));
#pragma unroll
    for (int i = 0; i < steps; i++) {
      const item* const p = TAPS == 1 || inside ? rows[i](tap) : nullptr;
      if (ROWS % row_lanes && row(i) >= ROWS) continue;
      // the rows of a step lie whole exchanges apart
      copy_ahead<16, NEAR>(to + i * (THREADS * 16), p + k, p != nullptr && inside);
    }
  }
};

#ifdef CUDAL1_WGMMA
#define CUDAL1_TEN(t) "%" #t "0,%" #t "1,%" #t "2,%" #t "3,%" #t "4,%" #t "5,%" #t "6,%" #t "7,%" #t "8,%" #t "9,"
#define CUDAL1_LIST8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define CUDAL1_LIST16 CUDAL1_TEN() "%10,%11,%12,%13,%14,%15"
#define CUDAL1_LIST32 CUDAL1_TEN() CUDAL1_TEN(1) CUDAL1_TEN(2) "%30,%31"
#define CUDAL1_LIST60 CUDAL1_TEN() CUDAL1_TEN(1) CUDAL1_TEN(2) CUDAL1_TEN(3) CUDAL1_TEN(4) CUDAL1_TEN(5)
#define CUDAL1_LIST64 CUDAL1_LIST60 "%60,%61,%62,%63"
#define CUDAL1_LIST90 CUDAL1_LIST60 CUDAL1_TEN(6) CUDAL1_TEN(7) CUDAL1_TEN(8)
#define CUDAL1_LIST96 CUDAL1_LIST90 "%90,%91,%92,%93,%94,%95"
#define CUDAL1_LIST128 \
  CUDAL1_LIST90 CUDAL1_TEN(9) CUDAL1_TEN(10) CUDAL1_TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"
#define CUDAL1_IN4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define CUDAL1_IN8(i) CUDAL1_IN4(i), CUDAL1_IN4(i + 4)
#define CUDAL1_IN16(i) CUDAL1_IN8(i), CUDAL1_IN8(i + 8)
#define CUDAL1_IN32(i) CUDAL1_IN16(i), CUDAL1_IN16(i + 16)
#define CUDAL1_IN64(i) CUDAL1_IN32(i), CUDAL1_IN32(i + 32)
#define CUDAL1_IN96(i) CUDAL1_IN64(i), CUDAL1_IN32(i + 64)
#define CUDAL1_IN128(i) CUDAL1_IN64(i), CUDAL1_IN64(i + 64)
// d += a * b; runs on until wait_for_groups
#define CUDAL1_MULTIPLY(TYPE, SHAPE, TYPES, LAYOUT, SUMS, A, B)                                                   \
  CUDAL1_FN void wgmma(float (&d)[SUMS], unsigned long long a, unsigned long long b, TYPE) {                      \
    asm volatile("{.reg .pred more; setp.eq.b32 more, 0, 0; wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPES    \
                 " {" CUDAL1_LIST##SUMS "}, %" #A ", %" #B ", more, 1, 1" LAYOUT ";}"                             \
                 : CUDAL1_IN##SUMS(0) : "l"(a), "l"(b));                                                          \
  }
#define CUDAL1_ALL_SIZES(TYPE, K, TYPES, LAYOUT)                                  \
  CUDAL1_MULTIPLY(TYPE, "m64n16" K, TYPES, LAYOUT, 8, 8, 9)                       \
  CUDAL1_MULTIPLY(TYPE, "m64n32" K, TYPES, LAYOUT, 16, 16, 17)                    \
  CUDAL1_MULTIPLY(TYPE, "m64n64" K, TYPES, LAYOUT, 32, 32, 33)                    \
  CUDAL1_MULTIPLY(TYPE, "m64n128" K, TYPES, LAYOUT, 64, 64, 65)                   \
  CUDAL1_MULTIPLY(TYPE, "m64n192" K, TYPES, LAYOUT, 96, 96, 97)                   \
  CUDAL1_MULTIPLY(TYPE, "m64n256" K, TYPES, LAYOUT, 128, 128, 129)
CUDAL1_ALL_SIZES(tf32, "k8", "tf32.tf32", "")
CUDAL1_ALL_SIZES(f16, "k16", "f16.f16", ", 0, 0")
CUDAL1_ALL_SIZES(bf16, "k16", "bf16.bf16", ", 0, 0")
// the same of tf32 with a's 16 rows of each warp in registers, or d = a * b if there is no more
#define CUDAL1_MULTIPLY_ROWS(SHAPE, SUMS, A0, A1, A2, A3, B, MORE)                                                  \
  CUDAL1_FN void wgmma_rows(float (&d)[SUMS], const unsigned (&a)[4], unsigned long long b, int more) {           \
    asm volatile("{.reg .pred more; setp.ne.b32 more, %" #MORE ", 0; wgmma.mma_async.sync.aligned." SHAPE         \
                 "k8.f32.tf32.tf32 {" CUDAL1_LIST##SUMS "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B          \
                 ", more, 1, 1;}"                                                                                 \
                 : CUDAL1_IN##SUMS(0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));           \
  }
CUDAL1_MULTIPLY_ROWS("m64n16", 8, 8, 9, 10, 11, 12, 13)
CUDAL1_MULTIPLY_ROWS("m64n32", 16, 16, 17, 18, 19, 20, 21)
CUDAL1_MULTIPLY_ROWS("m64n64", 32, 32, 33, 34, 35, 36, 37)
CUDAL1_MULTIPLY_ROWS("m64n128", 64, 64, 65, 66, 67, 68, 69)
CUDAL1_MULTIPLY_ROWS("m64n192", 96, 96, 97, 98, 99, 100, 101)
CUDAL1_MULTIPLY_ROWS("m64n256", 128, 128, 129, 130, 131, 132, 133)
template <int LEFT> CUDAL1_FN void wait_for_groups() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
#endif

// Columns that a store takes at once: one as float, or four as float (&)[4].
template <class S, class = void> struct AtOnce {
  enum { columns = 4 };
};
template <class S> struct AtOnce<S, decltype((void)(*(const S*)0)(0, 0.0f))> {
  enum { columns = 1 };
};

// The sums of 64 x BN results in a warp group: a warp has 16 rows, a thread four of each 8 columns.
template <class T, int BN, int BK, int ROUNDS> struct WideGroup {
  typedef Arithmetic<T> Kind;
  enum { steps = BK / Kind::step, long_sums = Kind::long_sums, between = 256 / BK };  // steps between parts
  static_assert(Kind::tensor && !Kind::split, "product_wide: tf32, tf32_long, f16 or bf16");
  static_assert(!ROUNDS || Kind::rounds, "product_wide: only tf32 and tf32_long are rounded to");
  float sum[BN / 2], part[Kind::long_sums ? BN / 2 : 1];  // a long sum's parts grow on the tensor cores

  CUDAL1_FN WideGroup() {
    clear(sum);
    clear(part);
  }
  template <int N> static CUDAL1_FN void clear(float (&d)[N]) {
#pragma unroll
    for (int p = 0; p < N; p++) d[p] = 0.0f;
  }
  CUDAL1_FN auto& growing() {
    if constexpr (Kind::long_sums) return part;
    else return sum;
  }
  static CUDAL1_FN int m(int q) { return warp_id() * 16 + lane_id() / 4 + q / 2 * 8; }
  static CUDAL1_FN int n(int p) { return p / 4 * 8 + lane_id() % 4 * 2 + p % 2; }

  // This step's products run on when it returns; those of the last step are done after finish_last.
  // rows: where a's are rounded; the tensor cores read them until then.
  template <class A, class B> CUDAL1_FN void multiply(A a, B b, unsigned (&rows)[steps][4]) {
    auto& to = growing();
#ifdef CUDAL1_WGMMA
    const unsigned long long from_b = b.descriptor(0);
    if constexpr (ROUNDS) {
#pragma unroll
      for (int s = 0; s < steps; s++) {
        load_fragment<T, 0>(rows[s], a, warp_id() * 16, s * Kind::step);
        round_fragment(rows[s]);
      }
    }
    // a warp group's number by one lane: the compiler sees that all have the same
    const unsigned long long from_a = a.descriptor(__shfl_sync(0xffffffffu, warp_id() / 4, 0) * 64);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int s = 0; s < steps; s++) {
      if constexpr (ROUNDS) wgmma_rows(to, rows[s], from_b + s * B::next, 1);
      else wgmma(to, from_a + s * A::next, from_b + s * B::next, typename Kind::on_tensor_cores());
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");  // 32 bytes of k each
#elif defined(CUDAL1_HOST)
    for (int k = 0; k < BK; k++)
      for (int p = 0; p < BN / 2; p++) {
        const float x = widen(a(m(p % 4), k));
        to[p] = fmaf(ROUNDS ? to_tf32(x) : x, widen(b(n(p), k)), to[p]);
      }
#else
    const int t = lane_id() % 4 * (Kind::packed + 1), half = Kind::step / 2;
    for (int k = t; k < BK + t; k += Kind::step) {
      unsigned x[4];
#pragma unroll
      for (int q = 0; q < 4; q++) x[q] = word_of(a(m(q % 2 * 2), k + q / 2 * half));
      if constexpr (ROUNDS) round_fragment(x);
#pragma unroll
      for (int j = 0; j < BN / 8; j++) {
        const unsigned y[2] = {word_of(b(j * 8 + lane_id() / 4, k)), word_of(b(j * 8 + lane_id() / 4, k + half))};
        mma(*(float(*)[4])(to + j * 4), x, y, typename Kind::on_tensor_cores());
      }
    }
#endif
  }
  CUDAL1_FN void finish_last() {
#ifdef CUDAL1_WGMMA
    wait_for_groups<1>();
#endif
  }
  // All products are done; the parts of long sums are added up outside of the tensor cores, which cut off.
  CUDAL1_FN void finish() {
#ifdef CUDAL1_WGMMA
    wait_for_groups<0>();
#pragma unroll
    for (int p = 0; p < BN / 2; p++) asm volatile("" : "+f"(growing()[p])::"memory");  // nothing reads them before
#endif
    if constexpr (Kind::long_sums) {
#pragma unroll
      for (int p = 0; p < BN / 2; p++) sum[p] += part[p];
      clear(part);
    }
  }
  // Through shared memory, so that neighbouring threads have neighbouring rows, or columns.
  template <int BM, int ALONG, class C> CUDAL1_FN void hand_out(float* staged, C& c CUDAL1_FROM) {
    enum { pitch = ALONG ? BN + 8 : BM + 4 };  // a warp's fragments keep off each other's banks
    __syncthreads(CUDAL1_LINE_ONLY);
    if constexpr (ALONG) {
      float* const first = staged + m(0) * pitch + n(0);  // two neighbours at once: 16 lanes' are on all banks
#pragma unroll
      for (int p = 0; p < BN / 2; p += 2) vstore<2>(first + p % 4 * 4 * pitch + p / 4 * 8, sum + p);
      __syncthreads(CUDAL1_LINE_ONLY);
      enum { at_once = AtOnce<decltype(c(0))>::columns };
      typedef AlongLanes<BM, BN, at_once> Lanes;
      enum { lanes = Lanes::lanes, rows = Lanes::rows, each = Lanes::each };
      const int lane = thread_id() % lanes;
#pragma unroll(at_once == 1 || each > 1 ? 2 : 4)  // rows whose loads are on their way together
      for (int row = thread_id() / lanes; row < BM; row += rows) {
        const auto store = c(row);
        float v[each][at_once];  // read at once: what stores may branch
#pragma unroll
        for (int p = 0; p < each; p++) vload<at_once>(staged + row * pitch + (p * lanes + lane) * at_once, v[p]);
#pragma unroll
        for (int p = 0; p < each; p++) {
          if constexpr (at_once == 1) store(p * lanes + lane, v[p][0]);
          else store((p * lanes + lane) * at_once, v[p]);
        }
      }
    } else {
#pragma unroll
      for (int p = 0; p < BN / 2; p++) staged[n(p) * pitch + m(p % 4)] = sum[p];
      __syncthreads(CUDAL1_LINE_ONLY);
      const int row = thread_id() % BM, half = thread_id() / BM;
      const auto store = c(row);
#pragma unroll 1
      for (int p = 0; p < BN / 2; p += 8) {
        float v[8];
#pragma unroll
        for (int q = 0; q < 8; q++) v[q] = staged[((p + q) * 2 + half) * pitch + row];
#pragma unroll
        for (int q = 0; q < 8; q++) store((p + q) * 2 + half, v[q]);
      }
    }
  }
};
}  // namespace cudal1

template <class T, int BM, int BN, int BK, int STAGES, int NEAR = 0, int TAPS = 1, int ROUNDS = 0, int ALONG = 0, class A,
          class B, class C>
CUDAL1_FN void product_wide(int taps, int depth, A a, B b, C c CUDAL1_FROM) {
  typedef cudal1::WideCopier<T, BM, BK, 2 * BM, NEAR, TAPS, A> CopierA;
  typedef cudal1::WideCopier<T, BN, BK, 2 * BM, 0, TAPS, B> CopierB;
  typedef typename CopierA::Tile TileA;
  typedef typename CopierB::Tile TileB;
  typedef typename TileA::item item;
  static_assert(BM % 64 == 0 && STAGES >= 3, "product_wide: whole warp groups, and three stages or more");
  static_assert(TileA::pieces % TAPS == 0, "product_wide: a tap is whole vectors of 16 bytes");
#ifdef CUDAL1_HOST
  char* const base = (char*)cudal1_dynamic;
#else
  char* const base = cudal1_dynamic + (-(int)cudal1::shared_at(cudal1_dynamic) & 1023);
#endif
  item* const stages_a = (item*)base;
  item* const stages_b = stages_a + STAGES * TileA::items;
  CopierA copy_a(a, typename cudal1::CountTo<CopierA::steps>::type());
  CopierB copy_b(b, typename cudal1::CountTo<CopierB::steps>::type());
  typedef cudal1::WideGroup<T, BN, BK, ROUNDS> Group;
  Group group;
  const int total = cdiv(taps, TAPS) * cdiv(depth, BK / TAPS);
  int tap = 0, k0 = 0;  // of the next tile to be fetched: the window inside, so that its places are still in the cache
  const auto fetch = [&](int step, int stage) {
    if (step < total) {
      copy_a.fetch(TileA{stages_a + stage * TileA::items}, taps, tap, k0, depth);
      copy_b.fetch(TileB{stages_b + stage * TileB::items}, taps, tap, k0, depth);
      tap += TAPS;
      if (tap >= taps) {
        tap = 0;
        k0 += BK / TAPS;
      }
    }
    cudal1::end_of_stage();
  };
  __syncthreads(CUDAL1_LINE_ONLY);  // an earlier call may still read the stages
#pragma unroll
  for (int s = 0; s < STAGES - 2; s++) fetch(s, s);
  int stage = 0, next = STAGES - 2;
  const auto turn = [&](int step, unsigned (&rows)[Group::steps][4]) {
    cudal1::wait_for_stages<STAGES - 3>();
    // no proxy fence: the tensor cores see complete copies, and the fence would wait for those on their way
    __syncthreads(CUDAL1_LINE_ONLY);  // this stage is there, and everybody is done with the one before the last
    if (group.long_sums && step % group.between == 0) group.finish();
    group.multiply(TileA{stages_a + stage * TileA::items}, TileB{stages_b + stage * TileB::items}, rows);
    fetch(step + STAGES - 2, next);  // where the one before the last was, while the tensor cores work
    group.finish_last();
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    next = next + 1 == STAGES ? 0 : next + 1;
  };
  unsigned rows[2][Group::steps][4];
  if constexpr (ROUNDS) {
    for (int step = 0; step < total; step += 2) {
      turn(step, rows[0]);
      if (step + 1 < total) turn(step + 1, rows[1]);
    }
  } else {
    for (int step = 0; step < total; step++) turn(step, rows[0]);
  }
  group.finish();
  group.template hand_out<BM, ALONG>((float*)base, c CUDAL1_AT);
}

namespace cudal1 {
template <int N> CUDAL1_FN float* turned() {  // the same memory for all of a block's calls
  __shared__ float tile[N];
  return tile;
}
}  // namespace cudal1

template <int R, int C, int THREADS, class F, class G> CUDAL1_FN void turn_tile(F from, G to CUDAL1_FROM) {
  static_assert(THREADS % R == 0 && THREADS % C == 0, "turn_tile: THREADS are whole rows and columns");
  float* const tile = cudal1::turned<R * (C + 1)>();
  const int id = thread_id(), row = id % R, column = id % C;
  __syncthreads(CUDAL1_LINE_ONLY);  // an earlier call may still read the tile
#pragma unroll
  for (int i = 0; i < R * C / THREADS; i++) {
    const int r = id / C + i * (THREADS / C);
    tile[r * (C + 1) + column] = from(r, column);
  }
  __syncthreads(CUDAL1_LINE_ONLY);
#pragma unroll
  for (int i = 0; i < R * C / THREADS; i++) {
    const int c = id / R + i * (THREADS / R);
    to(row, c, tile[row * (C + 1) + c]);
  }
}
