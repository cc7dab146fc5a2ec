// Products of int8, compiled once per instruction set that multiplies u8 by s8 without saturation. The rules of kernels.cpp apply.
#include <immintrin.h>

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
#else
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)x, (__m256i)m);
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

}  // namespace

void multiply_int8(const Product& product, const Dequantization& factors, int64_t first, int64_t last) {
#if defined(__AMX_INT8__)
  if (product.rows >= kFewestRows) return multiply_tiles(Int8Dot{factors}, product, first, last);
#endif
  multiply_as<Int8Dot, false>({factors}, product, first, last);
}

}  // namespace SOUK_ISA
}  // namespace souk
