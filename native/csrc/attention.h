// Attention of some query rows of one head over their segment: blocks of keys with online softmax, a few query rows at a time.
// Included only by kernels.cpp.

constexpr float kMasked = -3.0e38f;  // finite, so that the difference of two of them is no NaN

// R rows by J vectors of c (+)= a * b, with a[R][depth], or a[depth][R] if `Turned`, and b[depth][J * W].
template <int R, int J, bool Turned>
INLINE void product(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                    int64_t depth, bool add) {
  vf s[R][J];
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < J; j++) s[r][j] = add ? load(c + r * c_stride + j * W) : vf{};
  for (int64_t d = 0; d < depth; d++) {
#pragma GCC unroll 4
    for (int j = 0; j < J; j++) {
      const vf v = load(b + d * b_stride + j * W);
#pragma GCC unroll 8
      for (int r = 0; r < R; r++) s[r][j] += v * (Turned ? a[d * a_stride + r] : a[r * a_stride + d]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; r++)
#pragma GCC unroll 4
    for (int j = 0; j < J; j++) store(c + r * c_stride + j * W, s[r][j]);
}

// The same for any number of vectors, as many at a time as there are registers for their sums.
template <int R, bool Turned = false>
void product_wide(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                  int64_t depth, int64_t vectors, bool add) {
  constexpr int J = W == 16 ? 16 / R : 2;
  int64_t j = 0;
  for (; j + J <= vectors; j += J)
    product<R, J, Turned>(c + j * W, c_stride, a, a_stride, b + j * W, b_stride, depth, add);
  const int64_t left = vectors - j;
  c += j * W;
  b += j * W;
  if (left == 1) product<R, 1, Turned>(c, c_stride, a, a_stride, b, b_stride, depth, add);
  if constexpr (J > 2) {
    if (left == 2) product<R, 2, Turned>(c, c_stride, a, a_stride, b, b_stride, depth, add);
    if (left == 3) product<R, 3, Turned>(c, c_stride, a, a_stride, b, b_stride, depth, add);
  }
}

// Transposes keys[count][dim] to out[dim][kKeyBlock], zero-padded to whole vectors of keys.
void transpose(float* out, const float* keys, int64_t stride, int64_t count, int64_t dim) {
  for (int64_t i = 0; i < count; i += W) {
    const int64_t rows = count - i < W ? count - i : W;
    int64_t d = 0;
    for (; d + W <= dim; d += W) transpose_block(out + d * kKeyBlock + i, kKeyBlock, keys + i * stride + d, stride, rows);
    for (; d < dim; d++)
      for (int64_t j = 0; j < W; j++) out[d * kKeyBlock + i + j] = j < rows ? keys[(i + j) * stride + d] : 0.0f;
  }
}

// Turns one row of scores into weights exp(s - max) and updates the row's maximum and sum. Keys outside [lo, hi) get weight
// zero. Returns the factor for the row's earlier output.
INLINE float weigh(float* s, int64_t vectors, int64_t lo, int64_t hi, float* maximum, float* total) {
  vf top = splat(kMasked);
  for (int64_t j = 0; j < vectors; j++) {
    vf x = load(s + j * W);
    if (j * W < lo || (j + 1) * W > hi) {
      const vi index = iota() + static_cast<int32_t>(j * W);
      x = (index >= static_cast<int32_t>(lo)) & (index < static_cast<int32_t>(hi)) ? x : splat(kMasked);
      store(s + j * W, x);
    }
    top = x > top ? x : top;
  }
  const float now = largest(top), before = *maximum;
  const float m = now > before ? now : before;
  const float shift = m > kMasked ? m : 0.0f;  // a row that has seen no key yet gets weights of zero
  vf added = {};
  for (int64_t j = 0; j < vectors; j++) {
    const vf p = exponential_down(load(s + j * W) - shift);
    added += p;
    store(s + j * W, p);
  }
  float factor = 1.0f;
  if (m > before) factor = exponential(splat(before - m))[0];
  *maximum = m;
  *total = *total * factor + sum(added);
  return factor;
}

// Adds the bias of each distance to one row of scores; `bias` is that of the row's first key.
INLINE void add_bias(float* s, const float* bias, int64_t count) {
  for (int64_t j = 0; j < count; j += W) store(s + j, load(s + j) + load_some(bias + j, count - j));
}

// Scratch of one call; see attention_scratch.
struct AttentionScratch {
  int64_t padded;
  float *keys, *values, *out, *queries, *scores, *maxima, *totals;

  explicit AttentionScratch(const AttentionTile& t) : padded(round_up(t.dim, 16)) {
    keys = t.scratch;
    values = keys + t.dim * kKeyBlock;
    out = values + padded * kKeyBlock;
    queries = out + padded * kQueryRows;
    scores = queries + kTileRows * padded;
    maxima = scores + kTileRows * kKeyBlock;
    totals = maxima + kQueryRows;
  }
};

// A block of keys and values, in the layout of the products.
struct KeyBlock {
  const float* values;
  int64_t value_stride, at, count;
  bool first;
};

// R query rows, from row `r` of the tile, with a block of keys. Rows beyond the last one repeat it.
template <int R>
void attend_rows(const AttentionTile& t, const AttentionScratch& s, const KeyBlock& b, int64_t r) {
  const int64_t padded = s.padded, vectors = (b.count + W - 1) / W;
  const auto token = [&](int64_t i) { return t.first + r + i < t.last ? t.first + r + i : t.last - 1; };
  for (int64_t i = 0; i < R; i++)
    for (int64_t d = 0; d < t.dim; d++) s.queries[i * padded + d] = t.q[token(i) * t.q_stride + d] * t.scale;
  product_wide<R>(s.scores, kKeyBlock, s.queries, padded, s.keys, kKeyBlock, t.dim, vectors, false);
  float* out = s.out + r * padded;
  for (int64_t i = 0; i < R; i++) {
    const int64_t lo = token(i) - t.window + 1 - b.at;
    const int64_t end = t.causal ? token(i) + 1 : t.window < t.length - token(i) ? token(i) + t.window : t.length;
    const int64_t hi = end - b.at;
    if (t.bias) add_bias(s.scores + i * kKeyBlock, t.bias + b.at - token(i), b.count);
    const float factor = weigh(s.scores + i * kKeyBlock, vectors, lo > 0 ? lo : 0, hi < b.count ? hi : b.count,
                               s.maxima + r + i, s.totals + r + i);
    if (t.dropout.on)
      drop_vectors(s.scores + i * kKeyBlock, vectors, dropout_row(t.dropout, t.mask_row + token(i) * t.logs_stride), b.at);
    if (!b.first && factor != 1.0f)
      for (int64_t d = 0; d < padded; d += W) store(out + i * padded + d, load(out + i * padded + d) * factor);
  }
  product_wide<R>(out, padded, s.scores, kKeyBlock, b.values, b.value_stride, b.count, padded / W, !b.first);
}

void attention(const AttentionTile& t) {
  const AttentionScratch s(t);
  const int64_t padded = s.padded, rows = t.last - t.first;
  for (int64_t r = 0; r < kQueryRows; r++) {
    s.maxima[r] = kMasked;
    s.totals[r] = 0.0f;
  }
  const int64_t begin = t.first - t.window + 1 > 0 ? t.first - t.window + 1 : 0;
  const int64_t reach = t.causal ? t.last : (t.window < t.length - t.last ? t.last - 1 + t.window : t.length);
  const int64_t end = reach < t.length ? reach : t.length;
  for (int64_t at = begin; at < end; at += kKeyBlock) {
    const int64_t count = end - at < kKeyBlock ? end - at : kKeyBlock;
    KeyBlock b{t.v + at * t.v_stride, t.v_stride, at, count, at == begin};
    transpose(s.keys, t.k + at * t.k_stride, t.k_stride, count, t.dim);
    if (t.dim != padded) {
      for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < padded; d++) s.values[i * padded + d] = d < t.dim ? b.values[i * b.value_stride + d] : 0.0f;
      b.values = s.values;
      b.value_stride = padded;
    }
    constexpr int kMany = W == 16 ? kTileRows : 4;  // as many as there are registers for their sums
    int64_t r = 0;
    for (; r + kMany - 4 < rows; r += kMany) attend_rows<kMany>(t, s, b, r);
    if (r < rows) attend_rows<4>(t, s, b, r);
  }
  for (int64_t r = 0; r < rows; r++) {
    const float inverse = 1.0f / s.totals[r];
    float* to = t.out + (t.first + r) * t.out_stride;
    for (int64_t d = 0; d < t.dim; d++) to[d] = s.out[r * padded + d] * inverse;
    if (t.logs) t.logs[(t.first + r) * t.logs_stride] = s.maxima[r] + __builtin_logf(s.totals[r]);
  }
}
