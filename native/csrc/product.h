// Matrix products. Included only by kernels.cpp.

// Rows per block, limited by the registers for their sums: two vectors of columns each.
constexpr int kAtOnce = W == 16 ? 12 : 6;

// Depth per pass over the output. The part of a panel then stays in the second-level cache while all rows use it.
constexpr int64_t kDepth = 512;

// R rows of x times two vectors of columns. The sums start from `out` if `add`; they are the same for any blocks of rows and of
// depth, because each is one chain in the order of depth.
template <int R, bool Turned>
INLINE void product_block(const Product& p, const float* x, const float* matrix, int64_t stride, int64_t depth, float* out,
                          bool add, int64_t columns, const float* bias) {
  vf sums[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; r++)
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) sums[r][v] = add ? load_some(out + r * p.out_stride + v * W, columns - v * W) : vf{};
  // three rows per pointer, because pointers are as scarce as sums
  const float* rows[4] = {x, x + 3 * p.x_stride, x + 6 * p.x_stride, x + 9 * p.x_stride};
  for (int64_t k = 0; k < depth; k++, matrix += stride) {
    const vf a = load(matrix), b = load(matrix + W);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const vf value = splat(Turned ? x[r] : rows[r / 3][(r % 3) * p.x_stride]);
      sums[r][0] += value * a;
      sums[r][1] += value * b;
    }
    if constexpr (Turned)
      x += p.x_stride;
    else
      for (int i = 0; i < 4; i++) rows[i]++;
  }
#pragma GCC unroll 2
  for (int v = 0; v < 2; v++) {
    const vf shift = bias ? load_some(bias + v * W, columns - v * W) : vf{};
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const vf y = bias ? sums[r][v] + shift : sums[r][v];
      store_some(out + r * p.out_stride + v * W, y, columns - v * W);
    }
  }
}

template <int R, bool Turned>
void product_rows(const Product& p, int64_t rows, const float* x, const float* matrix, int64_t stride, int64_t depth,
                  float* out, bool add, int64_t columns, const float* bias) {
  if constexpr (R > 0) {
    if (rows == R) return product_block<R, Turned>(p, x, matrix, stride, depth, out, add, columns, bias);
    product_rows<R - 1, Turned>(p, rows, x, matrix, stride, depth, out, add, columns, bias);
  }
}

template <bool Turned>
void multiply_as(const Product& p, int64_t first, int64_t last) {
  if (p.rows == 0) return;
  // equal parts: a pass over one row leaves most of the processor idle
  const int64_t passes = (p.rows + kAtOnce - 1) / kAtOnce, share = (p.rows + passes - 1) / passes;
  float padded[kDepth * 2 * W];
  for (int64_t k = 0; k < p.depth; k += kDepth) {
    const bool ends = k + kDepth >= p.depth, add = p.add || k > 0;
    const int64_t depth = ends ? p.depth - k : kDepth;
    for (int64_t column = first * kPanel; column < last * kPanel && column < p.width; column += 2 * W) {
      const int64_t columns = p.width - column;
      const float* matrix = p.matrix + column / kPanel * p.panel_step + column % kPanel + k * p.matrix_stride;
      int64_t stride = p.matrix_stride;
      if (columns < 2 * W && p.panel_step == kPanel) {  // rows without padding
        for (int64_t d = 0; d < depth; d++)
          for (int v = 0; v < 2; v++)
            store(padded + (2 * d + v) * W, load_some(matrix + d * stride + v * W, columns - v * W));
        matrix = padded;
        stride = 2 * W;
      }
      const float* bias = ends && p.bias ? p.bias + column : nullptr;
      for (int64_t row = 0; row < p.rows; row += share) {
        const int64_t rows = p.rows - row < share ? p.rows - row : share;
        const float* x = p.x + (Turned ? row + k * p.x_stride : row * p.x_stride + k);
        product_rows<kAtOnce, Turned>(p, rows, x, matrix, stride, depth, p.out + row * p.out_stride + column, add, columns,
                                      bias);
      }
    }
  }
}

void multiply(const Product& p, int64_t first, int64_t last) {
  if (p.turned)
    multiply_as<true>(p, first, last);
  else
    multiply_as<false>(p, first, last);
}

// Rows of `x` [width, depth] as panels.
void pack(float* panels, const float* x, int64_t depth, int64_t width) {
  for (int64_t column = 0; column < width; column += kPanel, panels += kPanel * depth)
    for (int64_t v = 0; v < kPanel; v += W) {
      const int64_t left = width - column - v, count = left < 0 ? 0 : left < W ? left : W;
      const float* from = x + (column + v) * depth;
      int64_t k = 0;
      for (; k + W <= depth; k += W) transpose_block(panels + k * kPanel + v, kPanel, from + k, depth, count);
      for (; k < depth; k++)
        for (int64_t j = 0; j < W; j++) panels[k * kPanel + v + j] = j < count ? from[j * depth + k] : 0.0f;
    }
}

// Adds the sum of each column of `x` [rows, n] to `sums`.
void add_columns(float* sums, const float* x, int64_t stride, int64_t rows, int64_t n) {
  for (int64_t j = 0; j < n; j += W) {
    vf total = load_some(sums + j, n - j);
    for (int64_t r = 0; r < rows; r++) total += load_some(x + r * stride + j, n - j);
    store_some(sums + j, total, n - j);
  }
}
