// Products of int8, compiled once per instruction set. The rules of kernels.cpp apply.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels.h"

namespace souk {
namespace SOUK_ISA {
namespace {

#include "vector.h"
#include "product.h"
#if defined(__AMX_INT8__)
#define TILE_DOT _tile_dpbusd
#include "tiles.h"
#endif

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
typedef uint8_t Entry;
#else
typedef int16_t Entry;
#endif
constexpr int64_t kPerWord = sizeof(int32_t) / sizeof(Entry);

struct Int8Dot {
  using Sum = vi;
  const Dequantization& factors;

  static INLINE vi broadcast(const float* x) {
    int32_t word;
    __builtin_memcpy(&word, x, sizeof word);
    return vi{} + word;
  }
  static INLINE vi add(vi sum, vi x, vf m) {
#if defined(__AVX512VNNI__)
    return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)x, (__m512i)m);
#elif defined(__AVXVNNI__)
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)m);
#elif defined(__AVX512BW__)
    return sum + (vi)_mm512_madd_epi16((__m512i)x, (__m512i)m);
#elif defined(__AVX2__)
    return sum + (vi)_mm256_madd_epi16((__m256i)x, (__m256i)m);
#else
    const vi y = as_int(m);
    return sum + (x << 16 >> 16) * (y << 16 >> 16) + (x >> 16) * (y >> 16);
#endif
  }
  static INLINE vi resume(const float* out, int64_t n) { return as_int(load_some(out, n)); }
  static INLINE void pause(float* out, vi sum, int64_t n) { store_some(out, as_float(sum), n); }
  struct Factors {
    vf scale, column, bias;
  };
  INLINE Factors of_columns(int64_t column, int64_t n) const {
    return {load_some(factors.scale + column, n), load_some(factors.column + column, n),
            factors.bias ? load_some(factors.bias + column, n) : vf{}};
  }
  INLINE void finish(float* out, int64_t row, const Factors& of, vi sum, int64_t n) const {
    const vf product = __builtin_convertvector(sum, vf) * of.scale;
    const vf y = product * factors.row_scale[row] + of.column * factors.row_shift[row];
    store_some(out, factors.bias ? y + of.bias : y, n);
  }
};

void multiply(const Product& product, const Dequantization& factors, int64_t first, int64_t last) {
#if defined(__AMX_INT8__)
  if (product.rows >= kFewestRows) return multiply_tiles(Int8Dot{factors}, product, first, last);
#endif
  multiply_as<Int8Dot, false>({factors}, product, first, last);
}

void quantize(int32_t* words, float* scale, float* shift, const float* x, int64_t rows, int64_t n) {
  typedef Entry Entries __attribute__((vector_size(W * sizeof(Entry))));
  const int64_t stride = round_up(n, kPerWord);
  Entry* q = reinterpret_cast<Entry*>(words);
  for (int64_t r = 0; r < rows; r++, x += n, q += stride) {
    for (int64_t j = n; j < stride; j++) q[j] = 0;
    // Zero is always inside the range, so it is represented exactly. `broken` is NaN if x is not finite.
    vf lo = {}, hi = {}, broken = {};
    for (int64_t j = 0; j < n; j += W) {
      const vf v = load_some(x + j, n - j);
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
    for (int64_t j = 0; j < n; j += W) {
      const vf y = at_most(at_least(load_some(x + j, n - j) * inverse + zero, vf{}), top);
      const Entries entries = __builtin_convertvector(as_int(y + 8388608.0f) & 255, Entries);  // 2^23: rounds into the low bits
      if (n - j >= W)
        __builtin_memcpy(q + j, &entries, sizeof entries);
      else
        __builtin_memcpy(q + j, &entries, static_cast<size_t>(n - j) * sizeof(Entry));
    }
  }
}

}  // namespace

const Int8Kernels int8 = {kPerWord, multiply, quantize};

}  // namespace SOUK_ISA
}  // namespace souk
