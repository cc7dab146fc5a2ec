// Table of row kernels. There is one table per instruction set, from the same source; the shim picks one at run time. Plain
// pointers only: this header must not include libtorch or inline library code, because the linker could keep a COMDAT function
// compiled for AVX-512 for every machine.
#pragma once
#include <stdint.h>

namespace souk {

enum Activation : int32_t { kNone = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kSilu = 4 };

// Converts an int8 product to floats: y[r][j] = x[r][j] * scale[r] + shift[r] * column[j] + bias[j]. If `scale` is null, the
// product is already the result. `bias` may be null.
struct Affine {
  const float* scale;
  const float* shift;
  const float* column;
  const float* bias;
};

struct Norm {
  const float* weight;
  const float* bias;
  float eps;
};

// Query rows of one head and segment. Pointers point to the segment's first token and the head's first element.
struct AttentionTile {
  const float *q, *k, *v;
  float* out;
  int64_t q_stride, k_stride, v_stride, out_stride;  // floats from token to token
  int64_t length;                                    // tokens in the segment
  int64_t first, last;                               // query rows of this tile, last - first <= kQueryRows
  int64_t dim;
  int64_t window;  // a token sees only keys with |i - j| < window
  bool causal;
  float scale;
  float* scratch;  // attention_scratch(dim) floats, aligned to 64 bytes
};

constexpr int64_t kQueryRows = 64;
constexpr int64_t kKeyBlock = 128;
constexpr int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

// Layout of the scratch: transposed keys, padded values, outputs, four rows of queries and of scores, maxima and sums.
constexpr int64_t attention_scratch(int64_t dim) {
  return dim * kKeyBlock + round_up(dim, 16) * (kKeyBlock + kQueryRows) + 4 * round_up(dim, 16) + 4 * kKeyBlock +
         2 * kQueryRows;
}

// Products of few rows are bound by reading the weight, so it is stored in reading order: panels of columns, each [depth,
// kPanel], the last one zero-padded.
constexpr int64_t kPanel = 32, kSlimRows = 24;

struct SlimProduct {
  float* out;           // [rows, width]
  const float* x;       // [rows, depth]
  const float* panels;  // [width / kPanel rounded up, depth, kPanel]
  const float* bias;    // [width], or null
  int64_t rows, depth, width;
};

struct Kernels {
  void (*activate)(float* out, const float* x, int64_t rows, int64_t n, const Affine& affine, int32_t activation);
  void (*add_norm)(float* out, const float* x, const float* residual, int64_t rows, int64_t n, const Affine& affine,
                   const Norm& norm);
  // Quantises each row to u8 with its own scale and zero point: x[r][j] ~ q[r][j] * scale[r] + shift[r].
  void (*quantize)(uint8_t* q, float* scale, float* shift, const float* x, int64_t rows, int64_t n);
  // out = LayerNorm(word + position + type), one row; `type` may be null.
  void (*embed_norm)(float* out, const float* word, const float* position, const float* type, int64_t n,
                     const Norm& norm);
  // Mean of `rows` rows; zeros when there are none.
  void (*mean)(float* out, const float* x, int64_t rows, int64_t n);
  void (*attention)(const AttentionTile& tile);
  // Computes the columns of panels `first` to `last`, exclusive.
  void (*slim)(const SlimProduct& product, int64_t first, int64_t last);
};

namespace baseline {
extern const Kernels kernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
#endif

}  // namespace souk
