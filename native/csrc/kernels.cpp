// Row kernels, compiled once per instruction set: SOUK_ISA names the namespace, the compiler's flags the set. Everything
// but the table sits in an anonymous namespace. No libtorch header and no standard C++ header may be included here.
#include "kernels.h"

#include <stddef.h>

namespace souk {
namespace SOUK_ISA {
namespace {

#include "vector.h"
#include "attention.h"

template <int32_t A>
INLINE vf activated(vf x) {
  if constexpr (A == kGelu) {
    // x * Phi(x) = max(x, 0) - |x| * erfc(|x| / sqrt 2) / 2, erfc after Abramowitz and Stegun 7.1.26 (error 1.5e-7).
    vf a = x < 0.0f ? -x : x;
    vf t = 1.0f / (a * (0.3275911f * 0.70710678118654752f) + 1.0f);
    vf p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vf tail = p * t * exponential(x * x * -0.5f);
    return (x < 0.0f ? vf{} : x) - a * tail * 0.5f;
  } else if constexpr (A == kGeluTanh) {
    vf u = x * (x * x * 0.044715f + 1.0f);
    return x / (exponential(u * -1.5957691216057308f) + 1.0f);
  } else if constexpr (A == kRelu) {
    return x < 0.0f ? vf{} : x;
  } else if constexpr (A == kSilu) {
    return x / (exponential(-x) + 1.0f);
  } else {
    return x;
  }
}

// Turns one row of a product into the result; see Affine.
struct Row {
  const float *x, *column, *bias;
  float scale, shift;
  bool whole;

  INLINE Row(const float* product, const Affine& affine, int64_t r)
      : x(product), column(affine.column), bias(affine.bias), scale(0), shift(0), whole(affine.scale == nullptr) {
    if (!whole) {
      scale = affine.scale[r];
      shift = affine.shift[r];
    }
  }
  INLINE vf at(int64_t j) const {
    if (whole) return load(x + j);
    vf y = load(x + j) * scale + load(column + j) * shift;
    return bias ? y + load(bias + j) : y;
  }
  INLINE vf part(int64_t j, int64_t n) const {
    if (whole) return load_part(x + j, n);
    vf y = load_part(x + j, n) * scale + load_part(column + j, n) * shift;
    return bias ? y + load_part(bias + j, n) : y;
  }
};

template <int32_t A>
void activate_as(float* out, const float* x, int64_t rows, int64_t n, const Affine& affine) {
  for (int64_t r = 0; r < rows; r++, x += n, out += n) {
    const Row row(x, affine, r);
    int64_t j = 0;
    for (; j + W <= n; j += W) store(out + j, activated<A>(row.at(j)));
    if (j < n) store_part(out + j, activated<A>(row.part(j, n - j)), n - j);
  }
}

void activate(float* out, const float* x, int64_t rows, int64_t n, const Affine& affine, int32_t activation) {
  switch (activation) {
    case kGelu: return activate_as<kGelu>(out, x, rows, n, affine);
    case kGeluTanh: return activate_as<kGeluTanh>(out, x, rows, n, affine);
    case kRelu: return activate_as<kRelu>(out, x, rows, n, affine);
    case kSilu: return activate_as<kSilu>(out, x, rows, n, affine);
    default: return activate_as<kNone>(out, x, rows, n, affine);
  }
}

// LayerNorm of a row in `y` whose sum is known. Two passes; the second also corrects the rounding of the mean, so a large mean
// costs no precision.
INLINE void normalize(float* y, int64_t n, float total, const Norm& norm) {
  const float rough = total / static_cast<float>(n);
  vf s0 = {}, s1 = {}, d0 = {}, d1 = {};
  int64_t j = 0;
  for (; j + 2 * W <= n; j += 2 * W) {
    vf a = load(y + j) - rough, b = load(y + j + W) - rough;
    s0 += a * a;
    s1 += b * b;
    d0 += a;
    d1 += b;
  }
  float squares = sum(s0 + s1), apart = sum(d0 + d1);
  for (; j < n; j++) {
    squares += (y[j] - rough) * (y[j] - rough);
    apart += y[j] - rough;
  }
  const float offset = apart / static_cast<float>(n), mean = rough + offset;
  const float variance = squares / static_cast<float>(n) - offset * offset;
  const float factor = 1.0f / __builtin_sqrtf((variance < 0.0f ? 0.0f : variance) + norm.eps);
  for (j = 0; j + W <= n; j += W)
    store(y + j, (load(y + j) - mean) * factor * load(norm.weight + j) + load(norm.bias + j));
  for (; j < n; j++) y[j] = (y[j] - mean) * factor * norm.weight[j] + norm.bias[j];
}

void add_norm(float* out, const float* x, const float* residual, int64_t rows, int64_t n, const Affine& affine,
              const Norm& norm) {
  for (int64_t r = 0; r < rows; r++, x += n, residual += n, out += n) {
    const Row row(x, affine, r);
    vf total = {};
    int64_t j = 0;
    for (; j + W <= n; j += W) {
      vf y = row.at(j) + load(residual + j);
      total += y;
      store(out + j, y);
    }
    if (j < n) {
      vf y = row.part(j, n - j) + load_part(residual + j, n - j);
      float part[W] = {};
      store_part(part, y, n - j);
      total += load(part);
      store_part(out + j, y, n - j);
    }
    normalize(out, n, sum(total), norm);
  }
}

void embed_norm(float* out, const float* word, const float* position, const float* type, int64_t n, const Norm& norm) {
  vf total = {};
  int64_t j = 0;
  for (; j + W <= n; j += W) {
    vf y = load(word + j) + load(position + j);
    if (type) y += load(type + j);
    total += y;
    store(out + j, y);
  }
  float rest = 0;
  for (; j < n; j++) {
    out[j] = word[j] + position[j] + (type ? type[j] : 0.0f);
    rest += out[j];
  }
  normalize(out, n, sum(total) + rest, norm);
}

void quantize(uint8_t* q, float* scale, float* shift, const float* x, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r++, x += n, q += n) {
    // Zero is always inside the range, so it is represented exactly. `broken` is NaN if x is not finite.
    vf lo = {}, hi = {}, broken = {};
    int64_t j = 0;
    for (; j < n; j += W) {
      vf v = j + W <= n ? load(x + j) : load_part(x + j, n - j);
      lo = v < lo ? v : lo;
      hi = v > hi ? v : hi;
      broken += v - v;
    }
    const float low = -largest(-lo), high = largest(hi);
    const float step = high > low ? (high - low) * (1.0f / 255.0f) : 1.0f;
    const float inverse = 1.0f / step;
    const float zero = static_cast<float>(static_cast<int32_t>(-low * inverse + 0.5f));
    scale[r] = step + sum(broken);
    shift[r] = -zero * scale[r];
    const vf top = splat(255.0f);
    for (j = 0; j < n; j += W) {
      vf v = j + W <= n ? load(x + j) : load_part(x + j, n - j);
      vf y = at_most(at_least(v * inverse + zero, vf{}), top);
      vb bytes = __builtin_convertvector(as_int(y + 8388608.0f) & 255, vb);  // 2^23: rounds into the low bits
      const int64_t count = n - j < W ? n - j : W;
      if (count == W)
        __builtin_memcpy(q + j, &bytes, sizeof bytes);
      else
        __builtin_memcpy(q + j, &bytes, static_cast<size_t>(count));
    }
  }
}

void mean(float* out, const float* x, int64_t rows, int64_t n) {
  const float factor = rows > 0 ? 1.0f / static_cast<float>(rows) : 0.0f;
  int64_t j = 0;
  for (; j + W <= n; j += W) {
    vf total = {};
    for (int64_t r = 0; r < rows; r++) total += load(x + r * n + j);
    store(out + j, total * factor);
  }
  for (; j < n; j++) {
    float total = 0;
    for (int64_t r = 0; r < rows; r++) total += x[r * n + j];
    out[j] = total * factor;
  }
}

// Rows per block, limited by the registers for their sums: two vectors of columns each.
constexpr int kAtOnce = W == 16 ? 12 : 6;

// R rows times two vectors of columns of one panel.
template <int R>
void slim_block(const SlimProduct& p, int64_t row, const float* panel, int64_t column) {
  vf sums[R][2] = {};
  const float* x = p.x + row * p.depth;
  for (int64_t k = 0; k < p.depth; k++, panel += kPanel) {
    const vf a = load(panel), b = load(panel + W);
#pragma GCC unroll 12
    for (int r = 0; r < R; r++) {
      const vf value = splat(x[r * p.depth + k]);
      sums[r][0] += value * a;
      sums[r][1] += value * b;
    }
  }
  for (int r = 0; r < R; r++) {
    float* out = p.out + (row + r) * p.width;
    for (int v = 0; v < 2; v++) {
      const int64_t at = column + v * W, left = p.width - at < W ? p.width - at : W;
      if (left <= 0) continue;
      const vf bias = p.bias ? load_part(p.bias + at, left) : vf{};
      store_part(out + at, sums[r][v] + bias, left);
    }
  }
}

template <int R>
void slim_rows(const SlimProduct& p, int64_t row, int64_t rows, const float* panel, int64_t column) {
  if constexpr (R > 0) {
    if (rows == R) return slim_block<R>(p, row, panel, column);
    slim_rows<R - 1>(p, row, rows, panel, column);
  }
}

void slim(const SlimProduct& p, int64_t first, int64_t last) {
  if (p.rows == 0) return;
  for (int64_t n = first; n < last; n++) {
    const float* panel = p.panels + n * kPanel * p.depth;
    // equal parts: a pass over one row leaves most of the processor idle
    const int64_t passes = (p.rows + kAtOnce - 1) / kAtOnce, share = (p.rows + passes - 1) / passes;
    for (int64_t row = 0; row < p.rows; row += share) {
      const int64_t rows = p.rows - row < share ? p.rows - row : share;
      for (int64_t v = 0; v < kPanel; v += 2 * W) slim_rows<kAtOnce>(p, row, rows, panel + v, n * kPanel + v);
    }
  }
}

}  // namespace

const Kernels kernels = {activate, add_norm, quantize, embed_norm, mean, attention, slim};

}  // namespace SOUK_ISA
}  // namespace souk
