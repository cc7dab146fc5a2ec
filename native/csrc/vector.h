// Vectors of the compiled instruction set's width, and exp on them. Included only by kernels.cpp, inside an anonymous
// namespace, so that other compilations of the same source do not see it.

#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif

typedef float vf __attribute__((vector_size(W * 4)));
typedef int32_t vi __attribute__((vector_size(W * 4)));

#define INLINE inline __attribute__((always_inline))

INLINE vf load(const float* p) {
  vf v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
INLINE void store(float* p, vf v) { __builtin_memcpy(p, &v, sizeof v); }

// Loads or stores the last n < W floats of a row; elements beyond are zero and not accessed.
INLINE vf load_part(const float* p, int64_t n) {
  vf v = {};
  __builtin_memcpy(&v, p, static_cast<size_t>(n) * sizeof(float));
  return v;
}
INLINE void store_part(float* p, vf v, int64_t n) { __builtin_memcpy(p, &v, static_cast<size_t>(n) * sizeof(float)); }

// The same for any n: whole vectors at full speed, none for n <= 0.
INLINE vf load_some(const float* p, int64_t n) { return n >= W ? load(p) : n > 0 ? load_part(p, n) : vf{}; }
INLINE void store_some(float* p, vf v, int64_t n) {
  if (n >= W)
    store(p, v);
  else if (n > 0)
    store_part(p, v, n);
}

// Subtracting zero is no operation, also for -0; adding it would be one.
INLINE vf splat(float x) { return x - vf{}; }
// Casts between vector types keep the bits.
INLINE vi as_int(vf v) { return (vi)v; }
INLINE vf as_float(vi v) { return (vf)v; }

// NaN in `a` stays NaN, so that a broken weight shows in the result.
INLINE vf at_least(vf a, vf lo) { return a < lo ? lo : a; }
INLINE vf at_most(vf a, vf hi) { return a > hi ? hi : a; }

INLINE vi iota() {
  vi v;
  for (int i = 0; i < W; i++) v[i] = i;
  return v;
}

// Swaps lanes at distance s.
INLINE vf swapped(vf v, int s) {
#if defined(__clang__)
  vf w;
  for (int i = 0; i < W; i++) w[i] = v[i ^ s];
  return w;
#else
  return __builtin_shuffle(v, iota() ^ s);
#endif
}
INLINE float sum(vf v) {
#pragma GCC unroll 4
  for (int s = W / 2; s > 0; s /= 2) v += swapped(v, s);
  return v[0];
}
INLINE float largest(vf v) {
#pragma GCC unroll 4
  for (int s = W / 2; s > 0; s /= 2) {
    const vf w = swapped(v, s);
    v = v < w ? w : v;
  }
  return v[0];
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

// exp(y) for y from -87 to 88, to about one ulp.
INLINE vf exponential_within(vf y) {
  const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  vf shifted = y * 1.44269504088896341f + round;
  vf n = shifted - round;
  vf r = y - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  vf p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // times 2^n: the low bits of `shifted` are n, and those of `round` are zero
  return as_float(as_int(p) + (as_int(shifted) << 23));
}

// exp; arguments under -87 give zero, over 88 the value at 88.
INLINE vf exponential(vf x) {
  const vf lo = splat(-87.0f), result = exponential_within(at_most(at_least(x, lo), splat(88.0f)));
  return x < lo ? vf{} : result;
}

// The same for arguments of which none is over 88.
INLINE vf exponential_down(vf x) {
  const vf lo = splat(-87.0f), result = exponential_within(at_least(x, lo));
  return x < lo ? vf{} : result;
}
