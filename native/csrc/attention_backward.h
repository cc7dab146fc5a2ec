// Gradients of attention: a block of keys with a tile of query rows at a time. The weights are computed again from the scores
// and the logs that the forward pass kept. Included only by kernels.cpp.

// Copies rows of `dim` floats, times a factor, to rows of `padded` floats; the rest, up to a multiple of four rows, is zero.
void copy_rows(float* to, int64_t padded, const float* from, int64_t stride, int64_t rows, int64_t dim, float factor) {
  for (int64_t r = 0; r < round_up(rows, 4); r++)
    for (int64_t d = 0; d < padded; d += W)
      store(to + r * padded + d, r < rows ? load_some(from + r * stride + d, dim - d) * factor : vf{});
}

// Scratch of one call; see attention_gradient_scratch.
struct GradientScratch {
  int64_t padded;
  float *keys, *values, *rows, *dk, *dv, *q, *gradient, *dq, *weights, *changes;

  explicit GradientScratch(const AttentionGradient& t) : padded(round_up(t.dim, 16)) {
    float* at = t.scratch;
    const auto take = [&](int64_t n) {
      float* part = at;
      at += n;
      return part;
    };
    keys = take(t.dim * kKeyBlock);
    values = take(t.dim * kKeyBlock);
    rows = take(padded * kKeyBlock);
    dk = take(padded * kKeyBlock);
    dv = take(padded * kKeyBlock);
    q = take(padded * kQueryRows);
    gradient = take(padded * kQueryRows);
    dq = take(padded * kQueryRows);
    weights = take(kQueryRows * kKeyBlock);
    changes = take(kQueryRows * kKeyBlock);
  }
};

// Turns scores and products of one query row into weights p = exp(s - log) and gradients of the scores, p * (change - shift).
// Keys outside [lo, hi) get zeros.
INLINE void weigh_backward(float* s, float* change, int64_t vectors, int64_t lo, int64_t hi, float log, float shift) {
  for (int64_t j = 0; j < vectors; j++) {
    vf p = exponential(load(s + j * W) - log);
    if (j * W < lo || (j + 1) * W > hi) {
      const vi index = iota() + static_cast<int32_t>(j * W);
      p = (index >= static_cast<int32_t>(lo)) & (index < static_cast<int32_t>(hi)) ? p : vf{};
    }
    store(s + j * W, p);
    store(change + j * W, p * (load(change + j * W) - shift));
  }
}

// A tile of query rows of one head with a block of keys, `at` to `at + count`.
void gradient_tile(const AttentionGradient& t, const GradientScratch& s, int64_t head, int64_t first, int64_t rows, int64_t at,
                   int64_t count) {
  const int64_t vectors = (count + W - 1) / W, padded = s.padded, all = round_up(rows, 4);
  const int64_t of = head * t.dim;
  const float* outs = t.out + first * t.out_stride + of;
  copy_rows(s.q, padded, t.q + first * t.q_stride + of, t.q_stride, rows, t.dim, t.scale);
  copy_rows(s.gradient, padded, t.gradient + first * t.out_stride + of, t.out_stride, rows, t.dim, 1.0f);
  for (int64_t r = 0; r < all; r += 4) {
    float *weights = s.weights + r * kKeyBlock, *changes = s.changes + r * kKeyBlock;
    product_wide<4>(weights, kKeyBlock, s.q + r * padded, padded, s.keys, kKeyBlock, t.dim, vectors, false);
    product_wide<4>(changes, kKeyBlock, s.gradient + r * padded, padded, s.values, kKeyBlock, t.dim, vectors, false);
    for (int64_t i = 0; i < 4; i++) {
      const int64_t token = first + r + i;
      const int64_t lo = token - t.window + 1 - at;
      const int64_t hi = (t.causal ? token + 1 : (t.window < t.length - token ? token + t.window : t.length)) - at;
      const bool real = r + i < rows;
      vf shift = {};
      for (int64_t d = 0; real && d < t.dim; d += W)
        shift += load_some(outs + (r + i) * t.out_stride + d, t.dim - d) * load(s.gradient + (r + i) * padded + d);
      const float log = real ? t.logs[token * t.logs_stride + head] : 0.0f;
      if (t.bias && real) add_bias(weights + i * kKeyBlock, t.bias + head * t.bias_stride + at - token, count);
      const bool drops = t.dropout.on && real;
      const DropoutRow mask = dropout_row(t.dropout, t.mask_row + token * t.logs_stride + head);
      if (drops) drop_vectors(changes + i * kKeyBlock, vectors, mask, at);
      weigh_backward(weights + i * kKeyBlock, changes + i * kKeyBlock, vectors, lo > 0 ? lo : 0,
                     !real ? 0 : hi < count ? hi : count, log, sum(shift));
      if (drops) drop_vectors(weights + i * kKeyBlock, vectors, mask, at);
      if (t.bias && real) {
        float* to = t.dbias + head * t.dbias_stride + at - token;
        for (int64_t j = 0; j < count; j += W)
          store_some(to + j, load_some(to + j, count - j) + load(changes + i * kKeyBlock + j), count - j);
      }
    }
    product_wide<4>(s.dq + r * padded, padded, changes, kKeyBlock, s.rows, padded, count, padded / W, false);
  }
  for (int64_t j = 0; j < count; j += 4) {
    product_wide<4, true>(s.dv + j * padded, padded, s.weights + j, kKeyBlock, s.gradient, padded, rows, padded / W, true);
    product_wide<4, true>(s.dk + j * padded, padded, s.changes + j, kKeyBlock, s.q, padded, rows, padded / W, true);
  }
  for (int64_t r = 0; r < rows; r++) {
    float* to = t.dq + (first + r) * t.dq_stride + of;
    for (int64_t d = 0; d < t.dim; d += W) {
      const vf y = load(s.dq + r * padded + d) * t.scale;
      store_some(to + d, at == 0 ? y : load_some(to + d, t.dim - d) + y, t.dim - d);
    }
  }
}

void attention_backward(const AttentionGradient& t) {
  const GradientScratch s(t);
  for (int64_t at = 0; at < t.length; at += kKeyBlock) {
    const int64_t count = t.length - at < kKeyBlock ? t.length - at : kKeyBlock;
    const float *k = t.k + at * t.k_stride, *v = t.v + at * t.v_stride;
    transpose(s.keys, k, t.k_stride, count, t.dim);
    transpose(s.values, v, t.v_stride, count, t.dim);
    copy_rows(s.rows, s.padded, k, t.k_stride, count, t.dim, 1.0f);
    for (int64_t i = 0; i < round_up(count, 4) * s.padded; i += W) {
      store(s.dk + i, vf{});
      store(s.dv + i, vf{});
    }
    for (int64_t head = 0; head < t.heads; head++)
      for (int64_t first = 0; first < t.length; first += kQueryRows) {
        const int64_t rows = t.length - first < kQueryRows ? t.length - first : kQueryRows;
        // the first block sets the gradients of the queries, so it is never skipped
        const bool after = at - (first + rows - 1) >= (t.causal ? 1 : t.window), before = first - (at + count - 1) >= t.window;
        if (at > 0 && (after || before)) continue;
        gradient_tile(t, s, head, first, rows, at, count);
      }
    for (int64_t i = 0; i < count; i++)
      for (int64_t d = 0; d < t.dim; d += W) {
        store_some(t.dk + (at + i) * t.dk_stride + d, load(s.dk + i * s.padded + d), t.dim - d);
        store_some(t.dv + (at + i) * t.dv_stride + d, load(s.dv + i * s.padded + d), t.dim - d);
      }
  }
}
