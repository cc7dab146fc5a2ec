// Row kernels, compiled once per instruction set: SOUK_ISA names the namespace, the compiler's flags the set. Everything
// but the table sits in an anonymous namespace. No libtorch header and no standard C++ header may be included here.
#include "kernels.h"

#include <stddef.h>

namespace souk {
namespace SOUK_ISA {
namespace {

#include "vector.h"
#include "dropout.h"
#include "attention.h"
#include "attention_backward.h"

// Probability that a standard normal exceeds a >= 0, erfc(a / sqrt 2) / 2, after Abramowitz and Stegun 7.1.26 (error 1.5e-7);
// `density` is exp(-a * a / 2).
INLINE vf normal_tail(vf a, vf density) {
  const vf t = 1.0f / (a * (0.3275911f * 0.70710678118654752f) + 1.0f);
  vf p = t * 1.061405429f - 1.453152027f;
  p = p * t + 1.421413741f;
  p = p * t - 0.284496736f;
  p = p * t + 0.254829592f;
  return p * t * density * 0.5f;
}

template <int32_t A>
INLINE vf activated(vf x) {
  if constexpr (A == kGelu) {
    // x * Phi(x), without cancellation
    const vf a = x < 0.0f ? -x : x;
    return (x < 0.0f ? vf{} : x) - a * normal_tail(a, exponential(x * x * -0.5f));
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

#include "product.h"

struct FloatDot : FloatSums {
  static INLINE vf broadcast(const float* x) { return splat(*x); }
  static INLINE vf add(vf sum, vf x, vf m) { return sum + x * m; }
};

void multiply(const Product& p, int64_t first, int64_t last) { multiply_any(FloatDot{{p.bias}}, p, first, last); }

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

// An activation and its derivative, which share most of their work.
struct Tangent {
  vf value, slope;
};

template <int32_t A>
INLINE Tangent tangent(vf x) {
  if constexpr (A == kGelu) {
    const vf density = exponential(x * x * -0.5f), phi = normal_tail(x < 0.0f ? -x : x, density);
    return {(x < 0.0f ? vf{} : x) - (x < 0.0f ? -x : x) * phi,
            (x < 0.0f ? phi : 1.0f - phi) + x * density * 0.39894228040143268f};
  } else if constexpr (A == kGeluTanh) {
    const vf s = 1.0f / (exponential(x * (x * x * 0.044715f + 1.0f) * -1.5957691216057308f) + 1.0f);
    return {x * s, s + x * s * (1.0f - s) * (x * x * 0.134145f + 1.0f) * 1.5957691216057308f};
  } else if constexpr (A == kRelu) {
    return {x < 0.0f ? vf{} : x, x > 0.0f ? splat(1.0f) : vf{}};
  } else if constexpr (A == kSilu) {
    const vf s = 1.0f / (exponential(-x) + 1.0f);
    return {x * s, s + x * s * (1.0f - s)};
  } else {
    return {x, splat(1.0f)};
  }
}

template <int32_t A>
void activate_backward_as(float* gradient, float* value, const float* x, int64_t n) {
  for (int64_t j = 0; j < n; j += W) {
    const Tangent y = tangent<A>(load_some(x + j, n - j));
    store_some(gradient + j, load_some(gradient + j, n - j) * y.slope, n - j);
    if (value) store_some(value + j, y.value, n - j);
  }
}

void activate_backward(float* gradient, float* value, const float* x, int64_t n, int32_t activation) {
  switch (activation) {
    case kGelu: return activate_backward_as<kGelu>(gradient, value, x, n);
    case kGeluTanh: return activate_backward_as<kGeluTanh>(gradient, value, x, n);
    case kRelu: return activate_backward_as<kRelu>(gradient, value, x, n);
    case kSilu: return activate_backward_as<kSilu>(gradient, value, x, n);
    default: return activate_backward_as<kNone>(gradient, value, x, n);
  }
}

template <int32_t A>
void activate_as(float* out, const float* x, int64_t n) {
  int64_t j = 0;
  for (; j + W <= n; j += W) store(out + j, activated<A>(load(x + j)));
  if (j < n) store_part(out + j, activated<A>(load_part(x + j, n - j)), n - j);
}

void activate(float* out, const float* x, int64_t n, int32_t activation) {
  switch (activation) {
    case kGelu: return activate_as<kGelu>(out, x, n);
    case kGeluTanh: return activate_as<kGeluTanh>(out, x, n);
    case kRelu: return activate_as<kRelu>(out, x, n);
    case kSilu: return activate_as<kSilu>(out, x, n);
    default: return activate_as<kNone>(out, x, n);
  }
}

struct Moments {
  float mean, factor;  // factor: one over the standard deviation
};

// Moments of a row whose sum is known. Two passes; the second also corrects the rounding of the mean, so a large mean costs no
// precision.
INLINE Moments moments(const float* y, int64_t n, float total, float eps) {
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
  const float offset = apart / static_cast<float>(n);
  const float variance = squares / static_cast<float>(n) - offset * offset;
  return {rough + offset, 1.0f / __builtin_sqrtf((variance < 0.0f ? 0.0f : variance) + eps)};
}

// LayerNorm of a row in `y` whose sum is known.
INLINE void normalize(float* y, int64_t n, float total, const Norm& norm) {
  const auto [mean, factor] = moments(y, n, total, norm.eps);
  int64_t j = 0;
  for (; j + W <= n; j += W)
    store(y + j, (load(y + j) - mean) * factor * load(norm.weight + j) + load(norm.bias + j));
  for (; j < n; j++) y[j] = (y[j] - mean) * factor * norm.weight[j] + norm.bias[j];
}

void norm_backward(const NormGradient& out, const float* gradient, const float* x, int64_t rows, int64_t n,
                   const Norm& norm) {
  for (int64_t r = 0; r < rows; r++, x += n, gradient += n) {
    vf total = {};
    float rest = 0;
    int64_t j = 0;
    for (; j + W <= n; j += W) total += load(x + j);
    for (; j < n; j++) rest += x[j];
    const auto [mean, factor] = moments(x, n, sum(total) + rest, norm.eps);
    vf first = {}, second = {};
    for (j = 0; j < n; j += W) {
      const vf g = load_some(gradient + j, n - j), unit = (load_some(x + j, n - j) - mean) * factor;
      store_some(out.weight + j, load_some(out.weight + j, n - j) + g * unit, n - j);
      store_some(out.bias + j, load_some(out.bias + j, n - j) + g, n - j);
      const vf scaled = g * load_some(norm.weight + j, n - j);
      first += scaled;
      second += scaled * unit;
    }
    const float a = sum(first) / static_cast<float>(n), b = sum(second) / static_cast<float>(n);
    float* to = out.x + r * n;
    for (j = 0; j < n; j += W) {
      const vf unit = (load_some(x + j, n - j) - mean) * factor;
      const vf scaled = load_some(gradient + j, n - j) * load_some(norm.weight + j, n - j);
      store_some(to + j, (scaled - a - unit * b) * factor, n - j);
    }
  }
}

void add_norm(float* out, const float* x, const float* residual, float* kept, int64_t rows, int64_t n, const Norm& norm) {
  for (int64_t r = 0; r < rows; r++, x += n, residual += n, out += n) {
    vf total = {};
    int64_t j = 0;
    for (; j + W <= n; j += W) {
      vf y = load(x + j) + load(residual + j);
      total += y;
      store(out + j, y);
    }
    if (j < n) {
      vf y = load_part(x + j, n - j) + load_part(residual + j, n - j);
      float part[W] = {};
      store_part(part, y, n - j);
      total += load(part);
      store_part(out + j, y, n - j);
    }
    if (kept) __builtin_memcpy(kept + r * n, out, static_cast<size_t>(n) * sizeof(float));
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

}  // namespace

const Kernels kernels = {activate,           add_norm, drop, embed_norm,  mean,              attention,
                         attention_backward, multiply, pack, add_columns, activate_backward, norm_backward};

}  // namespace SOUK_ISA
}  // namespace souk
