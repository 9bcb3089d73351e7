// scan.cuh: running sums and products over values that threads hold in registers, and what columns of threads share.
//
//   tile_sum tile_prod tile_max tile_min (x): blocks of 32 x R threads, over all with the same threadIdx.x
//   thread_scan_sum(q, carry)  warp_scan_sum(q, carry)  block_scan_sum(q, carry)  tile_scan_sum(q, carry), and _prod:
//     q[C] or q[C][V] becomes its own inclusive scan behind `carry`, and carry takes in all of q.
//     warp, block    q[k][j] stands at (k * threads + thread) * V + j
//     tile           blocks of 32 x R threads: q[k], without V, stands at threadIdx.y * C + k of column threadIdx.x
//   block_before_sum(parts, count, q, n, x)  tile_before_sum(...), and _prod:
//     n blocks share a row (32 columns): what the blocks before this one, the q-th, gave as x. parts: scratch of n
//     values (of n * 32) a row, count: a counter of wait_for_blocks.
#pragma once

namespace cudal1 {
template <class F, class T, int C, int V> CUDAL1_FN void put_behind(T before, T (&q)[C][V], int k) {
#pragma unroll
  for (int j = 0; j < V; j++) q[k][j] = F::join(before, q[k][j]);
}
// Every thread's own V neighbours; then the ends of all of them over each warp.
template <class F, class T, int C, int V> CUDAL1_FN void scan_ends(T (&q)[C][V], T (&ends)[C] CUDAL1_FROM) {
#pragma unroll
  for (int k = 0; k < C; k++) {
#pragma unroll
    for (int j = 1; j < V; j++) q[k][j] = F::join(q[k][j - 1], q[k][j]);
    ends[k] = warp_scan<F>(q[k][V - 1] CUDAL1_AT);
  }
}
struct OfThread {
  template <class F, class T, int C, int V> static CUDAL1_FN void scan(T (&q)[C][V], T& carry CUDAL1_FROM) {
#pragma unroll
    for (int k = 0; k < C; k++)
#pragma unroll
      for (int j = 0; j < V; j++) q[k][j] = carry = F::join(carry, q[k][j]);
  }
};
struct OfWarp {
  template <class F, class T, int C, int V> static CUDAL1_FN void scan(T (&q)[C][V], T& carry CUDAL1_FROM) {
    T ends[C];
    scan_ends<F>(q, ends CUDAL1_AT);
#pragma unroll
    for (int k = 0; k < C; k++) {
      const T up = __shfl_up_sync(0xffffffffu, ends[k], 1 CUDAL1_SHUFFLE_AT);
      put_behind<F>(lane_id() == 0 ? carry : F::join(carry, up), q, k);
      carry = F::join(carry, __shfl_sync(0xffffffffu, ends[k], 31 CUDAL1_SHUFFLE_AT));
    }
  }
};
struct OfBlock {
  template <class F, class T, int C, int V> static CUDAL1_FN void scan(T (&q)[C][V], T& carry CUDAL1_FROM) {
    __shared__ T part[C][32];
    T ends[C];
    const int warps = block_threads() / 32;
    scan_ends<F>(q, ends CUDAL1_AT);
    __syncthreads(CUDAL1_LINE_ONLY);
#pragma unroll
    for (int k = 0; k < C; k++)
      if (lane_id() == 31) part[k][warp_id()] = ends[k];
    __syncthreads(CUDAL1_LINE_ONLY);
#pragma unroll
    for (int k = 0; k < C; k++) {
      const T sums = warp_scan<F>(part[k][lane_id() < warps ? lane_id() : 0] CUDAL1_AT);
      const T warp_up = __shfl_sync(0xffffffffu, sums, warp_id() > 0 ? warp_id() - 1 : 0 CUDAL1_SHUFFLE_AT);
      const T first = warp_id() == 0 ? carry : F::join(carry, warp_up);
      const T up = __shfl_up_sync(0xffffffffu, ends[k], 1 CUDAL1_SHUFFLE_AT);
      put_behind<F>(lane_id() == 0 ? first : F::join(first, up), q, k);
      carry = F::join(carry, __shfl_sync(0xffffffffu, sums, warps - 1 CUDAL1_SHUFFLE_AT));
    }
  }
};
// Takes what the rows of threads hold for one column: all of it into `all`, what is above this one into `before`.
template <class F, class T> CUDAL1_FN void join_column(T x, T& before, T& all CUDAL1_FROM) {
  __shared__ T part[32][32];
  __syncthreads(CUDAL1_LINE_ONLY);
  part[threadIdx.y][threadIdx.x] = x;
  __syncthreads(CUDAL1_LINE_ONLY);
  for (int y = 0; y < (int)blockDim.y; y++) {
    if (y == (int)threadIdx.y) before = all;
    all = F::join(all, part[y][threadIdx.x]);
  }
}
struct OfTile {
  template <class F, class T, int C, int V> static CUDAL1_FN void scan(T (&q)[C][V], T& carry CUDAL1_FROM) {
    static_assert(V == 1, "a tile's threads hold one column each: q[C]");
    T before = carry;
#pragma unroll
    for (int k = 1; k < C; k++) q[k][0] = F::join(q[k - 1][0], q[k][0]);
    join_column<F>(q[C - 1][0], before, carry CUDAL1_AT);
#pragma unroll
    for (int k = 0; k < C; k++) put_behind<F>(before, q, k);
  }
};
template <class F, class T> CUDAL1_FN T tile_reduce(T x CUDAL1_FROM) {
  __shared__ T part[32][32];
  __syncthreads(CUDAL1_LINE_ONLY);
  part[threadIdx.y][threadIdx.x] = x;
  __syncthreads(CUDAL1_LINE_ONLY);
  T all = part[0][threadIdx.x];
  for (int y = 1; y < (int)blockDim.y; y++) all = F::join(all, part[y][threadIdx.x]);
  return all;
}
template <class F, class T> CUDAL1_FN T block_before(T* parts, int* count, int q, int n, T x, T none CUDAL1_FROM) {
  if (thread_id() == 0) parts[q] = x;
  wait_for_blocks(count, n CUDAL1_AT);
  T before = none;
  for (int i = thread_id(); i < q; i += block_threads()) before = F::join(before, parts[i]);
  return block_reduce<F>(before CUDAL1_AT);
}
template <class F, class T> CUDAL1_FN T tile_before(T* parts, int* count, int q, int n, T x, T none CUDAL1_FROM) {
  const int column = threadIdx.x;
  if (threadIdx.y == 0) parts[q * 32 + column] = x;
  wait_for_blocks(count, n CUDAL1_AT);
  T before = none;
  for (int i = threadIdx.y; i < q; i += blockDim.y) before = F::join(before, parts[i * 32 + column]);
  return tile_reduce<F>(before CUDAL1_AT);
}
}  // namespace cudal1

#define CUDAL1_TILE(VERB, F) \
  template <class T> CUDAL1_FN T tile_##VERB(T x CUDAL1_FROM) { return cudal1::tile_reduce<cudal1::F>(x CUDAL1_AT); }
CUDAL1_TILE(sum, Sum)
CUDAL1_TILE(prod, Prod)
CUDAL1_TILE(max, Max)
CUDAL1_TILE(min, Min)
#undef CUDAL1_TILE

#define CUDAL1_SCANS(SCOPE, OF, VERB, F)                                                                  \
  template <class T, int C> CUDAL1_FN void SCOPE##_scan_##VERB(T (&q)[C], T& carry CUDAL1_FROM) {         \
    cudal1::OF::scan<cudal1::F>(reinterpret_cast<T(&)[C][1]>(q), carry CUDAL1_AT);                        \
  }                                                                                                       \
  template <class T, int C, int V> CUDAL1_FN void SCOPE##_scan_##VERB(T (&q)[C][V], T& carry CUDAL1_FROM) { \
    cudal1::OF::scan<cudal1::F>(q, carry CUDAL1_AT);                                                      \
  }
CUDAL1_SCANS(thread, OfThread, sum, Sum)
CUDAL1_SCANS(thread, OfThread, prod, Prod)
CUDAL1_SCANS(warp, OfWarp, sum, Sum)
CUDAL1_SCANS(warp, OfWarp, prod, Prod)
CUDAL1_SCANS(block, OfBlock, sum, Sum)
CUDAL1_SCANS(block, OfBlock, prod, Prod)
CUDAL1_SCANS(tile, OfTile, sum, Sum)
CUDAL1_SCANS(tile, OfTile, prod, Prod)
#undef CUDAL1_SCANS

#define CUDAL1_BEFORE(SCOPE, VERB, F, NONE)                                                                  \
  template <class T>                                                                                         \
  CUDAL1_FN T SCOPE##_before_##VERB(T* parts, int* count, int q, int n, T x CUDAL1_FROM) {                   \
    return cudal1::SCOPE##_before<cudal1::F>(parts, count, q, n, x, (T)NONE CUDAL1_AT);                      \
  }
CUDAL1_BEFORE(block, sum, Sum, 0)
CUDAL1_BEFORE(block, prod, Prod, 1)
CUDAL1_BEFORE(tile, sum, Sum, 0)
CUDAL1_BEFORE(tile, prod, Prod, 1)
#undef CUDAL1_BEFORE
