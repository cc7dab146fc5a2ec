// Matrix products of any operands. Included only by kernels.cpp, bf16.cpp and int8.cpp, after vector.h.
//
// Operands are words of 32 bits along the depth: of one f32, two bf16, four int8 or two int16. A `Dot` multiplies
// them:
//   Sum                  a vector of sums
//   broadcast(x)         the word at x in every lane
//   add(sum, x, m)       adds the products of the words x and m
//   resume(out, n)       n sums that an earlier pass stored
//   pause(out, sum, n)   stores them
//   of_columns(column, n)              what the results of n columns have in common
//   finish(out, row, columns, sum, n)  stores the result of n sums

// Rows per block, limited by the registers for their sums: two vectors of columns each.
constexpr int kAtOnce = W == 16 ? 12 : 6;

// Depth per pass over the output. The part of a panel then stays in the cache while all rows use it.
constexpr int64_t kDepth = W == 16 ? 768 : 384;

// Whether operands that are not stored in the order in which they are read are copied first. Their rows are some KB apart and
// share few sets of the cache, so that each block of rows would fetch them again. With AVX-512, blocks are larger, and a copy
// costs what it gains.
constexpr bool kCopies = W < 16;

// Base of the dots whose sums are f32; a bias is added at the end.
struct FloatSums {
  using Sum = vf;
  const float* bias;

  static INLINE vf resume(const float* out, int64_t n) { return load_some(out, n); }
  static INLINE void pause(float* out, vf sum, int64_t n) { store_some(out, sum, n); }
  INLINE vf of_columns(int64_t column, int64_t n) const { return bias ? load_some(bias + column, n) : vf{}; }
  INLINE void finish(float* out, int64_t, vf shift, vf sum, int64_t n) const {
    store_some(out, bias ? sum + shift : sum, n);
  }
};

// Two vectors of columns of a matrix, some words deep.
struct Columns {
  const float* data;
  int64_t stride, depth;
  int64_t first, count;  // the first column, and those from it on
  int64_t ahead;         // words from each row to what is prefetched meanwhile
  bool resumes, ends;    // not the first pass over the depth; the last one
};

// R rows, from `row` on, times two vectors of columns; `x` points to these rows or to a copy of them. Sums are the same for any blocks
// of rows and of depth, because each is one chain in the order of depth.
template <class Dot, int R, bool Turned>
INLINE void product_block(const Dot& dot, const Product& p, int64_t row, const float* x, const Columns& c) {
  typename Dot::Sum sums[R][2];
  float* out = p.out + row * p.out_stride + c.first;
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++)
      sums[r][v] = c.resumes ? dot.resume(out + r * p.out_stride + v * W, c.count - v * W) : typename Dot::Sum{};
  // three rows per pointer, because pointers are as scarce as sums
  const float* rows[4] = {x, x + 3 * p.x_stride, x + 6 * p.x_stride, x + 9 * p.x_stride};
  const float* matrix = c.data;
  for (int64_t k = 0; k < c.depth; k++, matrix += c.stride) {
    const vf a = load(matrix), b = load(matrix + W);
    __builtin_prefetch(matrix + c.ahead);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const auto value = dot.broadcast(Turned ? x + r : rows[r / 3] + (r % 3) * p.x_stride);
      sums[r][0] = dot.add(sums[r][0], value, a);
      sums[r][1] = dot.add(sums[r][1], value, b);
    }
    if constexpr (Turned)
      x += kCopies ? R : p.x_stride;
    else
      for (int i = 0; i < 4; i++) rows[i]++;
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; v++) {
    const int64_t n = c.count - v * W;
    const auto columns = dot.of_columns(c.first + v * W, n);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      float* to = out + r * p.out_stride + v * W;
      if (c.ends)
        dot.finish(to, row + r, columns, sums[r][v], n);
      else
        dot.pause(to, sums[r][v], n);
    }
  }
}

template <class Dot, int R, bool Turned>
void product_rows(const Dot& dot, const Product& p, int64_t row, int64_t rows, const float* x, const Columns& c) {
  if constexpr (R > 0) {
    if (rows == R) return product_block<Dot, R, Turned>(dot, p, row, x, c);
    product_rows<Dot, R - 1, Turned>(dot, p, row, rows, x, c);
  }
}

// Copies two vectors of columns without gaps, those that are missing as zeros.
INLINE void copy_columns(float* to, const Columns& c) {
  const float* from = c.data;
  for (int64_t d = 0; d < c.depth; d++, from += c.stride)
    for (int v = 0; v < 2; v++, to += W) store(to, load_some(from + v * W, c.count - v * W));
}

// Copies rows of a turned x, in the order in which blocks of `share` rows read them.
INLINE void copy_turned(float* to, const float* x, int64_t stride, int64_t rows, int64_t depth, int64_t share) {
  for (int64_t row = 0; row < rows; row += share) {
    const int64_t count = rows - row < share ? rows - row : share;
    const float* from = x + row;
    for (int64_t d = 0; d < depth; d++, from += stride, to += count)
      if (count == kAtOnce)
        __builtin_memcpy(to, from, kAtOnce * sizeof(float));
      else
        for (int64_t r = 0; r < count; r++) to[r] = from[r];
  }
}

// Computes the columns of panels `first` to `last`, exclusive.
template <class Dot, bool Turned>
void multiply_as(const Dot& dot, const Product& p, int64_t first, int64_t last) {
  if (p.rows == 0) return;
  // equal parts: a pass over one row leaves most of the processor idle
  const int64_t passes = (p.rows + kAtOnce - 1) / kAtOnce, share = (p.rows + passes - 1) / passes;
  constexpr bool kCopiesX = Turned && kCopies;
  float columns[kDepth * 2 * W], copied[kCopiesX ? kMostTurned * kDepth : 1];
  // a few blocks read columns where they are in less time than a copy takes
  const bool in_rows = p.panel_step == kPanel, copies_columns = in_rows && kCopies && passes >= 8;
  for (int64_t k = 0; k < p.depth; k += kDepth) {
    const int64_t depth = p.depth - k < kDepth ? p.depth - k : kDepth;
    const auto at = [&](int64_t column) {
      return p.matrix + column / kPanel * p.panel_step + column % kPanel + k * p.matrix_stride;
    };
    const float* x = p.x + k * (Turned ? p.x_stride : 1);
    if constexpr (kCopiesX) copy_turned(copied, x, p.x_stride, p.rows, depth, share);
    for (int64_t column = first * kPanel; column < last * kPanel && column < p.width; column += 2 * W) {
      Columns c{at(column), p.matrix_stride, depth, column, p.width - column, 0, p.add || k > 0, k + depth == p.depth};
      int64_t next = at(column + 2 * W) - c.data;
      if (copies_columns || (in_rows && c.count < 2 * W)) {  // rows are not padded
        copy_columns(columns, c);
        c.data = columns;
        c.stride = 2 * W;
        next = 0;
      }
      for (int64_t row = 0; row < p.rows; row += share) {
        const int64_t rows = p.rows - row < share ? p.rows - row : share;
        // the first two blocks of rows fetch the next columns, one vector each
        c.ahead = row == 0 ? next : row == share ? next + W : 0;
        const float* here = kCopiesX ? copied + row * depth : x + row * (Turned ? 1 : p.x_stride);
        product_rows<Dot, kAtOnce, Turned>(dot, p, row, rows, here, c);
      }
    }
  }
}

// The same for a product with any order of x.
template <class Dot>
void multiply_any(const Dot& dot, const Product& p, int64_t first, int64_t last) {
  if (p.turned)
    multiply_as<Dot, true>(dot, p, first, last);
  else
    multiply_as<Dot, false>(dot, p, first, last);
}
