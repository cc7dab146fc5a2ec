// Attention of some query rows of one head over their segment: blocks of keys with online softmax. Scores are [keys, queries],
// with a query in each lane, so that maxima and sums need no step across lanes. Included only by kernels.cpp.

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

// Transposes W rows of W floats; rows from `count` on are zero and not read.
INLINE void transpose_block(float* out, int64_t out_stride, const float* in, int64_t in_stride, int64_t count) {
  vf v[W];
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) v[i] = i < count ? load(in + i * in_stride) : vf{};
#if defined(__clang__)
  for (int i = 0; i < W; i++)
    for (int j = 0; j < W; j++) out[j * out_stride + i] = v[i][j];
#else
#pragma GCC unroll 4
  for (int s = 1; s < W; s *= 2) {
    const vi upper = (iota() & s) != 0;
    const vi first = upper ? iota() - s + W : iota();
    const vi second = upper ? iota() + W : iota() + s;
#pragma GCC unroll 16
    for (int i = 0; i < W; i++) {
      if (i & s) continue;
      const vf a = v[i], b = v[i + s];
      v[i] = __builtin_shuffle(a, b, first);
      v[i + s] = __builtin_shuffle(a, b, second);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < W; i++) store(out + i * out_stride, v[i]);
#endif
}

// Transposes rows[count][dim] to out[dim][out_stride], zero-padded to whole vectors of rows.
void transpose(float* out, int64_t out_stride, const float* rows, int64_t stride, int64_t count, int64_t dim) {
  for (int64_t i = 0; i < count; i += W) {
    const int64_t some = count - i < W ? count - i : W;
    int64_t d = 0;
    for (; d + W <= dim; d += W) transpose_block(out + d * out_stride + i, out_stride, rows + i * stride + d, stride, some);
    for (; d < dim; d++)
      for (int64_t j = 0; j < W; j++) out[d * out_stride + i + j] = j < some ? rows[(i + j) * stride + d] : 0.0f;
  }
}

// Scratch of one call; see attention_scratch.
struct AttentionScratch {
  int64_t padded;
  float *queries, *scores, *values, *out, *maxima, *totals, *factors;

  explicit AttentionScratch(const AttentionTile& t) : padded(round_up(t.dim, 16)) {
    queries = t.scratch;
    scores = queries + t.dim * kQueryTile;
    values = scores + kKeyBlock * kQueryTile;
    out = values + kKeyBlock * padded;
    maxima = out + kQueryTile * padded;
    totals = maxima + kQueryTile;
    factors = totals + kQueryTile;
  }
};

// A block of keys and values, `at` to `at + count`.
struct KeyBlock {
  const float *keys, *values;
  int64_t value_stride, at, count;
  bool first;
};

constexpr int kTileRows = W == 16 ? 8 : 4;  // as many as there are registers for their sums

template <int R>
void score_keys(const AttentionTile& t, const AttentionScratch& s, const KeyBlock& b, int64_t j, int64_t vectors) {
  product_wide<R>(s.scores + j * kQueryTile, kQueryTile, b.keys + j * t.k_stride, t.k_stride, s.queries, kQueryTile, t.dim,
                  vectors, false);
}

// Scores of a block of keys, some keys at a time. The last step overlaps the one before it.
void score(const AttentionTile& t, const AttentionScratch& s, const KeyBlock& b, int64_t vectors) {
  int64_t j = 0;
  for (; j + kTileRows <= b.count; j += kTileRows) score_keys<kTileRows>(t, s, b, j, vectors);
  if (j == b.count) return;
  if (j > 0) return score_keys<kTileRows>(t, s, b, b.count - kTileRows, vectors);
  if (kTileRows > 4 && b.count >= 4) {
    score_keys<4>(t, s, b, 0, vectors);
    return score_keys<4>(t, s, b, b.count - 4, vectors);
  }
  for (; j < b.count; j++) score_keys<1>(t, s, b, j, vectors);
}

// Gives scores that a query must not see the least value. The lanes are queries from `token` on.
INLINE void mask(const AttentionTile& t, const KeyBlock& b, float* scores, int64_t token) {
  const vi query = iota() + static_cast<int32_t>(token - b.at);
  const int32_t window = static_cast<int32_t>(t.window < t.length ? t.window : t.length);
  for (int32_t j = 0; j < static_cast<int32_t>(b.count); j++) {
    const vi after = j - query;
    const vi seen = (after > -window) & (after < (t.causal ? 1 : window));
    store(scores + j * kQueryTile, seen ? load(scores + j * kQueryTile) : splat(kMasked));
  }
}

// Turns a vector of queries' scores into weights exp(s - max), and updates their maxima and sums. Returns whether earlier
// outputs need another factor.
INLINE bool weigh(const AttentionScratch& s, const KeyBlock& b, int64_t lane) {
  float* scores = s.scores + lane;
  const vf before = load(s.maxima + lane);
  vf top = before;
  for (int64_t j = 0; j < b.count; j++) {
    const vf x = load(scores + j * kQueryTile);
    top = x > top ? x : top;
  }
  const vf shift = top > kMasked ? top : vf{};  // a query that has seen no key yet gets weights of zero
  vf added = {};
  for (int64_t j = 0; j < b.count; j++) {
    const vf p = exponential_down(load(scores + j * kQueryTile) - shift);
    added += p;
    store(scores + j * kQueryTile, p);
  }
  const vf factor = exponential_down(before - top);
  store(s.maxima + lane, top);
  store(s.totals + lane, load(s.totals + lane) * factor + added);
  store(s.factors + lane, factor);
  return !b.first && largest(top - before) > 0.0f;
}

template <int R>
void add_values(const AttentionScratch& s, const KeyBlock& b, int64_t r) {
  product_wide<R, true>(s.out + r * s.padded, s.padded, s.scores + r, kQueryTile, b.values, b.value_stride, b.count,
                        s.padded / W, !b.first);
}

// All query rows of the tile with a block of keys.
void attend(const AttentionTile& t, const AttentionScratch& s, const KeyBlock& b) {
  const int64_t rows = t.last - t.first, vectors = (rows + W - 1) / W;
  score(t, s, b, vectors);
  for (int64_t lane = 0; lane < rows; lane += W) {
    if (t.causal || t.window < t.length) mask(t, b, s.scores + lane, t.first + lane);
    if (!weigh(s, b, lane)) continue;
    for (int64_t r = lane; r < lane + W; r++)
      for (int64_t d = 0; d < s.padded; d += W)
        store(s.out + r * s.padded + d, load(s.out + r * s.padded + d) * s.factors[r]);
  }
  int64_t r = 0;
  for (; r + kTileRows - 4 < rows; r += kTileRows) add_values<kTileRows>(s, b, r);
  if (r < rows) add_values<4>(s, b, r);
}

void attention(const AttentionTile& t) {
  const AttentionScratch s(t);
  const int64_t padded = s.padded, rows = t.last - t.first;
  transpose(s.queries, kQueryTile, t.q + t.first * t.q_stride, t.q_stride, rows, t.dim);
  for (int64_t d = 0; d < t.dim; d++)
    for (float* q = s.queries + d * kQueryTile; q < s.queries + d * kQueryTile + rows; q += W) store(q, load(q) * t.scale);
  for (int64_t r = 0; r < kQueryTile; r++) {
    s.maxima[r] = kMasked;
    s.totals[r] = 0.0f;
  }
  const int64_t begin = t.first - t.window + 1 > 0 ? t.first - t.window + 1 : 0;
  const int64_t reach = t.causal ? t.last : (t.window < t.length - t.last ? t.last - 1 + t.window : t.length);
  const int64_t end = reach < t.length ? reach : t.length;
  for (int64_t at = begin; at < end; at += kKeyBlock) {
    const int64_t count = end - at < kKeyBlock ? end - at : kKeyBlock;
    KeyBlock b{t.k + at * t.k_stride, t.v + at * t.v_stride, t.v_stride, at, count, at == begin};
    if (t.dim != padded) {
      for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < padded; d++) s.values[i * padded + d] = d < t.dim ? b.values[i * b.value_stride + d] : 0.0f;
      b.values = s.values;
      b.value_stride = padded;
    }
    attend(t, s, b);
  }
  for (int64_t r = 0; r < rows; r++) {
    const float inverse = 1.0f / s.totals[r];
    float* to = t.out + (t.first + r) * t.out_stride;
    for (int64_t d = 0; d < t.dim; d += W) store_some(to + d, load(s.out + r * padded + d) * inverse, t.dim - d);
    if (t.logs) t.logs[(t.first + r) * t.logs_stride] = s.maxima[r] + __builtin_logf(s.totals[r]);
  }
}
