// product_bulk.cuh: sums of products whose operands one warp copies in bulk, ahead of warp groups that only multiply.
//
//   product_bulk<T, BM, BN, BK, STAGES, TAPS, SPAN, PATCHES, ALONG = 0>(outer, depth, a, shift, b, c, done = nothing);
//                                                                 by all 2 * BM + 32 threads of a block
//     Operands lie in planes: places (rows of a, columns of b) of 16 bytes side by side, a vector of k each. Plane p
//     holds k from p * VECTOR on (VECTOR: 4 of float32, 8 of half types), 0 where there is none; up to whole BK.
//     c(m)(n, v)      gets v = sum over o < outer, tap < TAPS and k < depth of
//                     A(o, k)[m + shift(tap)] * B(o * TAPS + tap, k)[n]
//     a(o)(p)         where the block's first place lies in plane p; BM + SPAN places are read, for all TAPS at once
//     shift(tap)      0 to SPAN places: where a window's step reads
//     b(t)(p)         where the block's first column lies in plane p; BN columns are read
//     T, BM, BN       as in product_wide
//     BK              a multiple of 32 bytes, 128 or 256 mostly; depth is rounded up to it
//     STAGES          tiles of b on their way; PATCHES: of a, 2 for many TAPS, STAGES for one
//     ALONG           0: neighbouring threads call c with neighbouring m; 1: with neighbouring n, one or four at once
//     done()          when all is handed out, by the 2 * BM threads that had it: no others may do more, for their registers
//                     are given away
//   Dynamic shared memory: 384 + (STAGES * BN + PATCHES * (BM + SPAN)) * BK * size bytes, but 384 + BN * (BM + 4) * 4
//   at least, along n 384 + BM * (BN + 8) * 4
//
//   product_fill<T, BM, BN, BK, STAGES, TAPS, SPAN, PATCHES, ALONG = 0, ROW = 0, VECTORS = 0>(outer, depth, a, shift, b, c,
//                                                                                              done = nothing);
//                                                                 by all 2 * BM + 256 threads of a block
//     as product_bulk, but a need not lie in planes: seven more warps compute its patches, an element once for all TAPS
//     a(o)(place)(k)  any number, for place < BM + SPAN and k < depth; neighbouring threads have neighbouring places
//     ROW             places of a patch's row, where a tile is 8 rows of BM / 8 places: its m-th place lies in row
//                     m / 8 % 8, m / 64 * 8 + m % 8 from its left
//     VECTORS         1: a(o)(place)(k, v) writes v[e] for k + e, a vector at once (v is all 0 before); neighbouring
//                     threads have neighbouring k; depth is whole vectors, BK 64 bytes or more. A patch then has 1 place
//                     more, or 3 if BK is 64 bytes: planes so far apart that a place's vectors are on other banks
//
// GPUs without wgmma multiply with mma; on the host target the products are plain loops.
#pragma once

namespace cudal1 {
// ROW: from one eight of places to the next within 64.
template <class T, int PITCH, int ROW = 8> struct PlaneTile {
  typedef typename Arithmetic<T>::item item;
  enum { wide = 16 / (int)sizeof(item), along = 1, pitch = PITCH };
  item* at;
  static CUDAL1_FN int place(int m) { return ROW == 8 ? m : m / 64 * 8 + m / 8 % 8 * ROW + m % 8; }
  CUDAL1_FN item& operator()(int m, int k) const { return at[(k / wide * PITCH + place(m)) * wide + k % wide]; }
#ifndef CUDAL1_HOST
  enum { next = 2 * PITCH };
  CUDAL1_FN unsigned long long descriptor(int m) const { return describe(at + place(m) * wide, PITCH, ROW); }
#endif
  template <int PLANES, int THREADS, class P> CUDAL1_FN void copy(const P& plane, int first) const {
    for (int i = thread_id(); i < PLANES * PITCH; i += THREADS)
      copy_ahead<16>(shared_at(at + i * wide), plane(first + i / PITCH) + i % PITCH * wide, true);
  }
  // Neighbouring threads have a place's planes. Loads of up to 32 elements first, of several places, as below.
  template <int PLANES, int PLACES, int THREADS, class P>
  CUDAL1_FN void fill_vectors(const P& of, int thread, int first, int depth) const {
    enum { step = THREADS / PLANES, each = cdiv(PLACES, step), together = cdiv(each, cdiv(each, 32 / wide)) };
    static_assert(THREADS % PLANES == 0, "product_fill: BK is a power of two where vectors are filled");
    const int p = thread % PLANES, k = first + p * wide;
#pragma unroll 1
    for (int place = thread / PLANES; place < PLACES; place += together * step) {
      float v[together][wide] = {};
      if (k < depth) {
#pragma unroll
        for (int j = 0; j < together; j++) of(min(place + j * step, PLACES - 1))(k, v[j]);
      }
#pragma unroll
      for (int j = 0; j < together; j++) {
#pragma unroll
        for (int e = 0; e < wide; e++) v[j][e] = Arithmetic<T>::rounds ? to_tf32(v[j][e]) : v[j][e];
        if (place + j * step < PLACES) vstore<wide>(at + (p * PITCH + place + j * step) * wide, v[j]);
      }
    }
  }
  // Loads of up to 32 elements of a place first, then their stores: 64 would not stay in registers.
  template <int PLANES, int THREADS, class P> CUDAL1_FN void fill(const P& of, int thread, int first, int depth) const {
    if (first + PLANES * wide <= depth) fill_places<PLANES, THREADS, 1>(of, thread, first, depth);
    else fill_places<PLANES, THREADS, 0>(of, thread, first, depth);
  }
  template <int PLANES, int THREADS, int WHOLE, class P>
  CUDAL1_FN void fill_places(const P& of, int thread, int first, int depth) const {
    enum { together = PLANES % 8 == 0 && wide == 4 ? 8 : PLANES % 4 == 0 ? 4 : 2 };
    for (int place = thread; place < PITCH; place += THREADS) {
      const auto row = of(place);
#pragma unroll 1
      for (int p = 0; p < PLANES; p += together) {
        float v[together][wide];
#pragma unroll
        for (int e = 0; e < together * wide; e++) {
          const int k = first + p * wide + e;
          const float x = WHOLE || k < depth ? (float)row(k) : 0.0f;
          v[e / wide][e % wide] = Arithmetic<T>::rounds ? to_tf32(x) : x;
        }
#pragma unroll
        for (int j = 0; j < together; j++) vstore<wide>(at + ((p + j) * PITCH + place) * wide, v[j]);
      }
    }
  }
};

#ifdef CUDAL1_WGMMA
// A barrier in shared memory: its phases end when `count` have arrived, and the bytes expected are there.
struct CopyBarrier {
  unsigned at;
  CUDAL1_FN void open(int count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(count) : "memory"); }
  CUDAL1_FN void close() { asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(at) : "memory"); }
  CUDAL1_FN void arrive() { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(at) : "memory"); }
  CUDAL1_FN void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
  }
  CUDAL1_FN void wait(int phase) {
    asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], %1; @p bra done; bra again; done:}"
                 ::"r"(at), "r"(phase) : "memory");
  }
};
// Slots that the copying warp fills and the multiplying ones empty, in turn.
template <int SLOTS> struct CopySlots {
  unsigned barriers;
  int slot, phase;
  CUDAL1_FN CopyBarrier full() const { return {barriers + slot * 8}; }
  CUDAL1_FN CopyBarrier empty() const { return {barriers + (SLOTS + slot) * 8}; }
  CUDAL1_FN void advance() {
    if (++slot == SLOTS) slot = 0, phase ^= 1;
  }
  CUDAL1_FN void open(int writers, int readers) {
    for (int s = 0; s < SLOTS; s++) {
      CopyBarrier{barriers + s * 8}.open(writers);
      CopyBarrier{barriers + (SLOTS + s) * 8}.open(readers);
    }
  }
  CUDAL1_FN void close() {
    for (int s = 0; s < 2 * SLOTS; s++) CopyBarrier{barriers + s * 8}.close();
  }
  // A plane a lane; the slot is full when all are there.
  template <int PLANES, int BYTES, class P> CUDAL1_FN void fill(unsigned to, const P& plane, int first) {
    empty().wait(phase ^ 1);
    if (lane_id() == 0) full().expect(PLANES * BYTES);
    __syncwarp();
    if (lane_id() < PLANES)
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                       to + (slot * PLANES + lane_id()) * BYTES), "l"(plane(first + lane_id())), "r"(BYTES), "r"(full().at) : "memory");
    advance();
  }
};
// What warps do that have no sums, while the others hand theirs out.
CUDAL1_FN void stand_by() {
  __syncthreads();
  __syncthreads();
}
// Registers change hands within a block, a warp group's at once.
template <int N> CUDAL1_FN void shrink_to() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> CUDAL1_FN void grow_to() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
#endif

struct Nothing {
  CUDAL1_FN void operator()() const {}
};

// FILLERS: warps that compute a's patches; 0 where these are copied.
template <class T, int BM, int BN, int BK, int STAGES, int TAPS, int SPAN, int PATCHES, int ALONG, int FILLERS, int ROW,
          int VECTORS, class A, class S, class B, class C, class D>
CUDAL1_FN void bulk_product(int outer, int depth, A a, S shift, B b, C c, D done CUDAL1_FROM) {
  typedef typename Arithmetic<T>::item item;
  // Planes apart by an odd number of places, or of twos or fours where a place has four planes or two.
  enum { wide = 16 / (int)sizeof(item), planes = BK / wide, odd = planes < 8 ? 8 / planes : 1, patch = BM + SPAN };
  typedef PlaneTile<T, VECTORS ? (patch + odd - 1) / (2 * odd) * (2 * odd) + odd : patch, ROW ? ROW : 8> TileA;
  typedef PlaneTile<T, BN> TileB;
  typedef WideGroup<T, BN, BK, 0> Group;
  enum { warps = BM / 16, threads = 2 * BM + 32 + 32 * FILLERS };
  enum { items_a = TileA::pitch * BK, items_b = BN * BK };
  // Registers of a thread: an even share of a multiprocessor's, and, where sums need more, what those who fill leave.
  enum { groups = BM / 64, even = 512 / (groups + 2) / 8 * 8, filling = 64, more = (even - filling) * 2 / groups / 8 * 8 + even };
  enum { uneven = FILLERS > 0 && (Group::long_sums ? BN : BN / 2) + 32 > even, most = more < 240 ? more : 240 };
  static_assert(BM % 64 == 0 && planes % 2 == 0 && planes <= 32, "product_bulk: whole warp groups; BK is 32 to 512 bytes");
  static_assert(2 * (STAGES + PATCHES) <= 32, "product_bulk: 16 stages and patches at most");
  const int chunks = cdiv(depth, BK);
#ifdef CUDAL1_HOST
  char* const base = (char*)cudal1_dynamic;
#else
  char* const base = cudal1_dynamic + (-(int)shared_at(cudal1_dynamic) & 127);
#endif
  item* const stages_b = (item*)(base + 256);
  item* const patches = stages_b + STAGES * items_b;
  Group group;
  unsigned rows[Group::steps][4];
#ifdef CUDAL1_WGMMA
  const unsigned barriers = shared_at(base);
  CopySlots<STAGES> slots_b = {barriers, 0, 0};
  CopySlots<PATCHES> slots_a = {barriers + 16 * STAGES, 0, 0};
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // of what an earlier call may have left there
  __syncthreads();
  if (thread_id() == 0) {
    slots_b.open(1, warps);
    slots_a.open(FILLERS > 0 ? FILLERS : 1, warps);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (warp_id() == warps + FILLERS) {
    if constexpr (uneven) shrink_to<filling>();
    for (int o = 0; o < outer; o++)
      for (int chunk = 0; chunk < chunks; chunk++) {
        if constexpr (FILLERS == 0)
          slots_a.template fill<planes, patch * 16>(shared_at(patches), a(o), chunk * planes);
        for (int tap = 0; tap < TAPS; tap++)
          slots_b.template fill<planes, BN * 16>(shared_at(stages_b), b(o * TAPS + tap), chunk * planes);
      }
    stand_by();
  } else if (warp_id() >= warps) {
    if constexpr (uneven) shrink_to<filling>();
    if constexpr (FILLERS > 0)
      for (int o = 0; o < outer; o++)
        for (int chunk = 0; chunk < chunks; chunk++) {
          slots_a.empty().wait(slots_a.phase ^ 1);
          const TileA tile = {patches + slots_a.slot * items_a};
          const int thread = thread_id() - 2 * BM;
          if constexpr (VECTORS) tile.template fill_vectors<planes, patch, 32 * FILLERS>(a(o), thread, chunk * BK, depth);
          else tile.template fill<planes, 32 * FILLERS>(a(o), thread, chunk * BK, depth);
          asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the tensor cores see what was written
          __syncwarp();
          if (lane_id() == 0) slots_a.full().arrive();
          slots_a.advance();
        }
    stand_by();
  } else {
    if constexpr (uneven) grow_to<most>();
    CopyBarrier last_a = {0}, last_b = {0};  // of the step before, whose products may still run
    int step = 0;
    for (int chunk = 0; chunk < outer * chunks; chunk++) {
      slots_a.full().wait(slots_a.phase);
#pragma unroll 1
      for (int tap = 0; tap < TAPS; tap++, step++) {
        slots_b.full().wait(slots_b.phase);
        if (group.long_sums && step % group.between == 0) group.finish();
        group.multiply(TileA{patches + slots_a.slot * items_a + shift(tap) * wide}, TileB{stages_b + slots_b.slot * items_b}, rows);
        group.finish_last();
        if (lane_id() == 0) {
          if (step) last_b.arrive();
          if (tap == 0 && step) last_a.arrive();
        }
        last_b = slots_b.empty();
        slots_b.advance();
      }
      last_a = slots_a.empty();
      slots_a.advance();
    }
    group.finish();
    group.template hand_out<BM, ALONG>((float*)(base + 256), c);
    if (thread_id() == 0) {
      slots_b.close();
      slots_a.close();
    }
    done();
  }
#else
  int step = 0;
  for (int o = 0; o < outer; o++)
    for (int chunk = 0; chunk < chunks; chunk++)
      for (int tap = 0; tap < TAPS; tap++, step++) {
        const auto of_a = a(o);
        const auto of_b = b(o * TAPS + tap);
        const TileA tile_a = {patches + step / TAPS % PATCHES * items_a};
        const TileB tile_b = {stages_b + step % STAGES * items_b};
        __syncthreads(CUDAL1_LINE_ONLY);  // nobody reads the last tiles any more
        if (tap == 0) {
          if constexpr (VECTORS) tile_a.template fill_vectors<planes, patch, threads>(of_a, thread_id(), chunk * BK, depth);
          else if constexpr (FILLERS > 0) tile_a.template fill<planes, threads>(of_a, thread_id(), chunk * BK, depth);
          else tile_a.template copy<planes, threads>(of_a, chunk * planes);
        }
        tile_b.template copy<planes, threads>(of_b, chunk * planes);
        end_of_stage();
        wait_for_stages<0>();
        __syncthreads(CUDAL1_LINE_ONLY);
        if (group.long_sums && step % group.between == 0) group.finish();
        if (warp_id() < warps) group.multiply(TileA{tile_a.at + shift(tap) * wide}, tile_b, rows);
      }
  group.finish();
  if (warp_id() < warps) {
    group.template hand_out<BM, ALONG>((float*)(base + 256), c CUDAL1_AT);
    done();
  } else {
    __syncthreads(CUDAL1_LINE_ONLY);
    __syncthreads(CUDAL1_LINE_ONLY);
  }
#endif
}
}  // namespace cudal1

template <class T, int BM, int BN, int BK, int STAGES, int TAPS, int SPAN, int PATCHES, int ALONG = 0, class A, class S,
          class B, class C, class D = cudal1::Nothing>
CUDAL1_FN void product_bulk(int outer, int depth, A a, S shift, B b, C c, D done = D() CUDAL1_FROM) {
  cudal1::bulk_product<T, BM, BN, BK, STAGES, TAPS, SPAN, PATCHES, ALONG, 0, 0, 0>(outer, depth, a, shift, b, c,
                                                                                   done CUDAL1_AT);
}

template <class T, int BM, int BN, int BK, int STAGES, int TAPS, int SPAN, int PATCHES, int ALONG = 0, int ROW = 0,
          int VECTORS = 0, class A, class S, class B, class C, class D = cudal1::Nothing>
CUDAL1_FN void product_fill(int outer, int depth, A a, S shift, B b, C c, D done = D() CUDAL1_FROM) {
  cudal1::bulk_product<T, BM, BN, BK, STAGES, TAPS, SPAN, PATCHES, ALONG, 7, ROW, VECTORS>(outer, depth, a, shift, b, c,
                                                                                           done CUDAL1_AT);
}
