// Products of bf16 with sums in f32, for training on processors that have AVX512_BF16, in a second compilation also AMX. The rules of
// kernels.cpp apply.
#include <immintrin.h>

#include "kernels.h"

namespace souk {
namespace SOUK_ISA {
namespace {

#include "vector.h"
#include "product.h"
#if defined(__AMX_BF16__)
#define TILE_DOT _tile_dpbf16ps
#include "tiles.h"
#endif

struct Bf16Dot : FloatSums {
  static INLINE vi broadcast(const float* x) {
    int32_t word;
    __builtin_memcpy(&word, x, sizeof word);
    return vi{} + word;
  }
  static INLINE vf add(vf sum, vi x, vf m) { return (vf)_mm512_dpbf16_ps((__m512)sum, (__m512bh)x, (__m512bh)m); }
};

void multiply(const Product& p, int64_t first, int64_t last) {
#if defined(__AMX_BF16__)
  multiply_tiles(Bf16Dot{{p.bias}}, p, first, last);
#else
  multiply_any(Bf16Dot{{p.bias}}, p, first, last);
#endif
}

typedef uint16_t vh __attribute__((vector_size(W * 2)));

// Rounded to the nearest, in the low halves of words.
INLINE vi rounded(vf x) { return __builtin_convertvector((vh)_mm512_cvtneps_pbh((__m512)x), vi); }

void round_rows(int32_t* out, const float* x, int64_t stride, int64_t rows, int64_t n) {
  const int64_t words = bf16_words(n);
  for (int64_t r = 0; r < rows; r++, x += stride, out += words)
    for (int64_t j = 0; j < n; j += W) {
      const __m256bh half = _mm512_cvtneps_pbh((__m512)load_some(x + j, n - j));
      const int64_t left = words - j / 2, count = left < W / 2 ? left : W / 2;
      __builtin_memcpy(out + j / 2, &half, static_cast<size_t>(count) * sizeof(int32_t));
    }
}

void pair_rows(int32_t* out, const float* x, int64_t stride, int64_t rows, int64_t n) {
  for (int64_t r = 0; r < rows; r += 2, x += 2 * stride, out += n)
    for (int64_t j = 0; j < n; j += W) {
      const vf second = r + 1 < rows ? load_some(x + stride + j, n - j) : vf{};
      const vi word = rounded(load_some(x + j, n - j)) | rounded(second) << 16;
      store_some(reinterpret_cast<float*>(out + j), as_float(word), n - j);
    }
}

}  // namespace

const Bf16Kernels kernels = {multiply, round_rows, pair_rows};

}  // namespace SOUK_ISA
}  // namespace souk
