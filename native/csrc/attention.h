// Attention of some query rows of one head over their segment: blocks of keys with online softmax, four query rows at a time.
// Included only by kernels.cpp.

constexpr float kMasked = -3.0e38f;  // finite, so that the difference of two of them is no NaN

// 4 rows by J vectors of c (+)= a * b, with a[4][depth], or a[depth][4] if `Turned`, and b[depth][J * W].
template <int J, bool Turned>
INLINE void product(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                    int64_t depth, bool add) {
  vf s[4][J];
#pragma GCC unroll 4
  for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
    for (int j = 0; j < J; j++) s[r][j] = add ? load(c + r * c_stride + j * W) : vf{};
  for (int64_t d = 0; d < depth; d++) {
#pragma GCC unroll 4
    for (int j = 0; j < J; j++) {
      const vf v = load(b + d * b_stride + j * W);
#pragma GCC unroll 4
      for (int r = 0; r < 4; r++) s[r][j] += v * (Turned ? a[d * a_stride + r] : a[r * a_stride + d]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
    for (int j = 0; j < J; j++) store(c + r * c_stride + j * W, s[r][j]);
}

// The same for any number of vectors.
template <bool Turned = false>
void product_wide(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                  int64_t depth, int64_t vectors, bool add) {
  constexpr int J = W == 16 ? 4 : 2;  // as many accumulators as there are registers for
  int64_t j = 0;
  for (; j + J <= vectors; j += J) product<J, Turned>(c + j * W, c_stride, a, a_stride, b + j * W, b_stride, depth, add);
  const int64_t left = vectors - j;
  c += j * W;
  b += j * W;
  if (left == 1) product<1, Turned>(c, c_stride, a, a_stride, b, b_stride, depth, add);
  if constexpr (J > 2) {
    if (left == 2) product<2, Turned>(c, c_stride, a, a_stride, b, b_stride, depth, add);
    if (left == 3) product<3, Turned>(c, c_stride, a, a_stride, b, b_stride, depth, add);
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
  vf added = {};
  for (int64_t j = 0; j < vectors; j++) {
    const vf x = load(s + j * W);
    const vf p = x <= kMasked ? vf{} : exponential(x - m);
    added += p;
    store(s + j * W, p);
  }
  float factor = 1.0f;
  if (m > before) factor = exponential(splat(before - m))[0];
  *maximum = m;
  *total = *total * factor + sum(added);
  return factor;
}

void attention(const AttentionTile& t) {
  const int64_t padded = round_up(t.dim, 16), rows = t.last - t.first, key_stride = kKeyBlock;
  float* keys = t.scratch;
  float* values = keys + t.dim * kKeyBlock;
  float* out = values + padded * kKeyBlock;
  float* query = out + padded * kQueryRows;
  float* scores = query + 4 * padded;
  float* maxima = scores + 4 * kKeyBlock;
  float* totals = maxima + kQueryRows;
  for (int64_t r = 0; r < kQueryRows; r++) {
    maxima[r] = kMasked;
    totals[r] = 0.0f;
  }
  const int64_t begin = t.first - t.window + 1 > 0 ? t.first - t.window + 1 : 0;
  const int64_t reach = t.causal ? t.last : (t.window < t.length - t.last ? t.last - 1 + t.window : t.length);
  const int64_t end = reach < t.length ? reach : t.length;
  for (int64_t at = begin; at < end; at += kKeyBlock) {
    const int64_t count = end - at < kKeyBlock ? end - at : kKeyBlock;
    const int64_t vectors = (count + W - 1) / W;
    transpose(keys, t.k + at * t.k_stride, t.k_stride, count, t.dim);
    const float* v = t.v + at * t.v_stride;
    int64_t v_stride = t.v_stride;
    if (t.dim != padded) {
      for (int64_t i = 0; i < count; i++)
        for (int64_t d = 0; d < padded; d++) values[i * padded + d] = d < t.dim ? v[i * v_stride + d] : 0.0f;
      v = values;
      v_stride = padded;
    }
    for (int64_t r = 0; r < rows; r += 4) {
      for (int64_t i = 0; i < 4; i++) {
        const float* from = t.q + (t.first + (r + i < rows ? r + i : rows - 1)) * t.q_stride;
        for (int64_t d = 0; d < t.dim; d++) query[i * padded + d] = from[d] * t.scale;
      }
      product_wide(scores, key_stride, query, padded, keys, key_stride, t.dim, vectors, false);
      float* o = out + r * padded;
      for (int64_t i = 0; i < 4; i++) {
        const int64_t token = t.first + (r + i < rows ? r + i : rows - 1);
        const int64_t lo = token - t.window + 1 - at;
        const int64_t hi = (t.causal ? token + 1 : (t.window < t.length - token ? token + t.window : t.length)) - at;
        const float factor = weigh(scores + i * key_stride, vectors, lo > 0 ? lo : 0, hi < count ? hi : count,
                                   maxima + r + i, totals + r + i);
        if (at != begin && factor != 1.0f)
          for (int64_t d = 0; d < padded; d += W) store(o + i * padded + d, load(o + i * padded + d) * factor);
      }
      product_wide(o, padded, scores, key_stride, v, v_stride, count, padded / W, at != begin);
    }
  }
  for (int64_t r = 0; r < rows; r++) {
    const float inverse = 1.0f / totals[r];
    float* to = t.out + (t.first + r) * t.out_stride;
    for (int64_t d = 0; d < t.dim; d++) to[d] = out[r * padded + d] * inverse;
    if (t.logs) t.logs[(t.first + r) * t.logs_stride] = maxima[r] + __builtin_logf(totals[r]);
  }
}
