// moments.cuh: sums, means and variances of columns, gathered while a block's threads store them row by row.
//
//   column_sums<BM, BN> q;  column_moments<BM, BN> q;     of what a product hands out along n (ALONG), four columns at once
//     q.add(n, v)            in c(m)(n, v), for the rows that are there
//   strip_sums<THREADS, V> q;  strip_moments<THREADS, V> q;  of blocks where each 32 neighbouring threads have 32 * V
//     q.add(v)               neighbouring columns: V columns of one row, float[V] or a float
//   q.join(c);               by all threads, where all has been added: c(n, sum) or c(n, rows, mean, squares) gets each
//                            of the block's columns n; squares: the sum of those about its mean over so many rows.
//                            Of tiles it takes the product's dynamic shared memory, and the 2 * BM threads that had
//                            the sums alone: in done() of product_bulk and product_fill, where the others have ended
#pragma once

#ifndef CUDAL1_HOST
extern __shared__ __align__(128) char cudal1_dynamic[];
#endif

namespace cudal1 {
// Of one thread's V columns.
template <int V> struct Sums {
  float sum[V] = {};
  CUDAL1_FN void add(const float (&v)[V]) {
#pragma unroll
    for (int j = 0; j < V; j++) sum[j] += v[j];
  }
};
template <int V> struct Moments {
  float sum[V] = {}, squares[V] = {};
  float count = 0, inverse = 0;
  CUDAL1_FN void add(const float (&v)[V]) {
    const float w = 1.0f / (count + 1), f = count * w;
#pragma unroll
    for (int j = 0; j < V; j++) {
      const float e = v[j] - sum[j] * inverse;  // a sum leaves no infinity, as a moved mean would
      sum[j] += v[j];
      squares[j] += f * e * e;
    }
    count++;
    inverse = w;
  }
};
// Where the ROWS threads that share COLUMNS columns, V each, lay down what they have.
template <int ROWS, int COLUMNS, int V> struct SumRows {
  typedef Sums<V> Own;
  enum { floats = ROWS * COLUMNS };
  float* sums;
  CUDAL1_FN SumRows(float* at) : sums(at) {}
  CUDAL1_FN void keep(int row, int vector, const Own& own) const { vstore<V>(sums + row * COLUMNS + vector * V, own.sum); }
  template <class C> CUDAL1_FN void join(int threads, C& c) const {
    for (int n = thread_id(); n < COLUMNS; n += threads) {
      float sum = 0.0f;
#pragma unroll
      for (int y = 0; y < ROWS; y++) sum += sums[y * COLUMNS + n];
      c(n, sum);
    }
  }
};
template <int ROWS, int COLUMNS, int V> struct MomentRows {
  typedef Moments<V> Own;
  enum { vectors = COLUMNS / V, floats = ROWS * (2 * COLUMNS + vectors) };
  float *sums, *squares, *counts;
  CUDAL1_FN MomentRows(float* at) : sums(at), squares(at + ROWS * COLUMNS), counts(squares + ROWS * COLUMNS) {}
  CUDAL1_FN void keep(int row, int vector, const Own& own) const {
    vstore<V>(sums + row * COLUMNS + vector * V, own.sum);
    vstore<V>(squares + row * COLUMNS + vector * V, own.squares);
    counts[row * vectors + vector] = own.count;
  }
  template <class C> CUDAL1_FN void join(int threads, C& c) const {
    for (int n = thread_id(); n < COLUMNS; n += threads) {
      float mean = 0.0f, second = 0.0f, all = 0.0f;
#pragma unroll
      for (int y = 0; y < ROWS; y++) {
        mean += sums[y * COLUMNS + n];
        all += counts[y * vectors + n / V];
      }
      mean /= maximum(all, 1.0f);
#pragma unroll
      for (int y = 0; y < ROWS; y++) {
        const float k = counts[y * vectors + n / V];
        const float e = sums[y * COLUMNS + n] / maximum(k, 1.0f) - mean;
        second += squares[y * COLUMNS + n] + k * e * e;
      }
      c(n, all, mean, second);
    }
  }
};
// EACH times four columns, LANES apart; as members, for registers have no index.
template <class OWN, int EACH, int LANES> struct LaneParts {
  LaneParts<OWN, EACH - 1, LANES> before;
  OWN own;
  CUDAL1_FN void add(int p, const float (&v)[4]) {
    if (EACH > 1 && p < EACH - 1) before.add(p, v);
    else own.add(v);
  }
  template <class R> CUDAL1_FN void keep(const R& rows, int row, int lane) const {
    before.keep(rows, row, lane);
    rows.keep(row, (EACH - 1) * LANES + lane, own);
  }
};
template <class OWN, int LANES> struct LaneParts<OWN, 0, LANES> {
  CUDAL1_FN void add(int, const float (&)[4]) {}
  template <class R> CUDAL1_FN void keep(const R&, int, int) const {}
};
template <template <int, int, int> class ROWS, int BM, int BN> struct GatheredTile {
  typedef AlongLanes<BM, BN, 4> Along;
  typedef ROWS<Along::rows, BN, 4> Rows;
  LaneParts<typename Rows::Own, Along::each, Along::lanes> own;
  CUDAL1_FN void add(int n, const float (&v)[4]) { own.add(n / (4 * Along::lanes), v); }
  template <class C> CUDAL1_FN void join(C c CUDAL1_FROM) {
    const Rows rows((float*)cudal1_dynamic);
    __syncthreads(CUDAL1_LINE_ONLY);  // all of the tile is handed out, and what was joined before is read
    own.keep(rows, thread_id() / Along::lanes, thread_id() % Along::lanes);
    __syncthreads(CUDAL1_LINE_ONLY);
    rows.join(2 * BM, c);
  }
};
template <template <int, int, int> class ROWS, int THREADS, int V> struct GatheredStrips {
  typedef ROWS<THREADS / 32, 32 * V, V> Rows;
  typename Rows::Own own;
  CUDAL1_FN void add(const float (&v)[V]) { own.add(v); }
  CUDAL1_FN void add(float v) {
    const float one[1] = {v};
    own.add(one);
  }
  template <class C> CUDAL1_FN void join(C c CUDAL1_FROM) {
    __shared__ __align__(16) float held[Rows::floats];
    const Rows rows(held);
    __syncthreads(CUDAL1_LINE_ONLY);  // what was joined before is read
    rows.keep(thread_id() / 32, thread_id() % 32, own);
    __syncthreads(CUDAL1_LINE_ONLY);
    rows.join(THREADS, c);
  }
};
}  // namespace cudal1

template <int BM, int BN> struct column_sums : cudal1::GatheredTile<cudal1::SumRows, BM, BN> {};
template <int BM, int BN> struct column_moments : cudal1::GatheredTile<cudal1::MomentRows, BM, BN> {};
template <int THREADS, int V> struct strip_sums : cudal1::GatheredStrips<cudal1::SumRows, THREADS, V> {};
template <int THREADS, int V> struct strip_moments : cudal1::GatheredStrips<cudal1::MomentRows, THREADS, V> {};
