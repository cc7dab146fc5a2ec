// Table of row kernels. There is one table per instruction set, from the same source; the shim picks one at run time. Plain
// pointers only: this header must not include libtorch or inline library code, because the linker could keep a COMDAT function
// compiled for AVX-512 for every machine.
#pragma once
#include <stdint.h>

namespace souk {

enum Activation : int32_t { kNone = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kSilu = 4 };

struct Norm {
  const float* weight;
  const float* bias;
  float eps;
};

// Dropout of the elements of a matrix. A hash of the seed, the row and the column decides which ones are set to zero, so that all
// instruction sets and any split into blocks drop the same ones.
struct Dropout {
  bool on = false;
  uint64_t seed = 0;
  int32_t limit = 0;  // elements whose hash is below it are dropped
  float factor = 1;   // for the others
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
  const float* bias;  // added to the scores by distance: bias[j - i] for query i and key j; or null
  float* scratch;     // attention_scratch(dim) floats, aligned to 64 bytes
  float* logs;        // log of the sum of exp(score) per token, at a distance of `logs_stride`; or null
  int64_t logs_stride;
  Dropout dropout;   // of the weights
  int64_t mask_row;  // of the first token in the matrix of weights; other tokens' rows follow at a distance of `logs_stride`
};

constexpr int64_t kQueryRows = 64;
constexpr int64_t kKeyBlock = 128;
constexpr int64_t round_up(int64_t n, int64_t m) { return (n + m - 1) / m * m; }

// Layout of the scratch: transposed keys, padded values, outputs, some rows of queries and of scores, maxima and sums.
constexpr int64_t kTileRows = 8;
constexpr int64_t attention_scratch(int64_t dim) {
  return dim * kKeyBlock + round_up(dim, 16) * (kKeyBlock + kQueryRows + kTileRows) + kTileRows * kKeyBlock +
         2 * kQueryRows;
}

// Gradients of one head of keys and values in one segment, and of the query heads that share it. Pointers point to the
// segment's first token and the first of the heads, which are neighbours.
struct AttentionGradient {
  const float *q, *k, *v, *out, *gradient, *logs;
  float *dq, *dk, *dv;
  int64_t q_stride, k_stride, v_stride, out_stride, logs_stride, dq_stride, dk_stride, dv_stride;
  int64_t length, heads, dim, window;
  bool causal;
  float scale;
  const float* bias;  // of the first head, as in AttentionTile; or null
  float* dbias;       // its gradient, to which this one is added: `length` entries on both sides of distance 0
  int64_t bias_stride, dbias_stride;  // floats from head to head
  float* scratch;                     // attention_gradient_scratch(dim) floats, aligned to 64 bytes
  Dropout dropout;
  int64_t mask_row;  // of the first token and head, as in AttentionTile; the next head's follows
};

// Layout of the scratch: transposed keys and values; padded keys and the gradients of keys and values; queries, gradients of
// outputs and of queries; weights and their gradients.
constexpr int64_t attention_gradient_scratch(int64_t dim) {
  return 2 * dim * kKeyBlock + round_up(dim, 16) * 3 * (kKeyBlock + kQueryRows) + 2 * kQueryRows * kKeyBlock;
}

// A packed matrix is stored in the order in which products read it: panels of kPanel columns, each [depth, kPanel], the last
// one zero-padded. Entries are f32, or words of two bf16, four int8 or two int16 that follow each other in depth.
constexpr int64_t kPanel = 32;
constexpr int64_t bf16_words(int64_t n) { return (n + 1) / 2; }

// The most rows of a product whose x is turned.
constexpr int64_t kMostTurned = 192;

// out = x * matrix + bias, or the same added to `out`.
struct Product {
  float* out;
  int64_t out_stride;  // floats from row to row
  const float* x;
  int64_t x_stride;
  bool turned;  // x is [depth, rows] instead of [rows, depth]
  const float* matrix;
  int64_t matrix_stride, panel_step;  // floats from row to row of a panel, and from panel to panel
  const float* bias;                  // [width], or null
  int64_t rows, depth, width;
  bool add;
};

// How the int8 product of row r and column j becomes a float: product * scale[j] * row_scale[r] + row_shift[r] * column[j] + bias[j].
struct Dequantization {
  const float *row_scale, *row_shift, *scale, *column;
  const float* bias;  // or null
};

// Products of int8 words; depth and strides count words. Without an instruction for four of 8 bits, a word is two of 16 bits with the
// same values, so sums are the same.
struct Int8Kernels {
  int64_t per_word;
  void (*multiply)(const Product& product, const Dequantization& factors, int64_t first, int64_t last);
  // Quantises each row to 0..255 with its own scale and zero point: x[r][j] ~ q[r][j] * scale[r] + shift[r]. Rows of q are whole
  // words, the last ones filled up with zeros.
  void (*quantize)(int32_t* q, float* scale, float* shift, const float* x, int64_t rows, int64_t n);
};

// Products of bf16 words, whose sums are f32; depth and strides count words.
struct Bf16Kernels {
  void (*multiply)(const Product& product, int64_t first, int64_t last);
  // Rounds rows of n floats to rows of words along them; the last word of an odd row ends with zero.
  void (*round_rows)(int32_t* out, const float* x, int64_t stride, int64_t rows, int64_t n);
  // Rounds two rows at a time to a row of n words across them; a last single row is paired with zeros.
  void (*pair_rows)(int32_t* out, const float* x, int64_t stride, int64_t rows, int64_t n);
};

// Gradients of LayerNorm for some rows; `weight` and `bias` are sums over rows, to which these are added.
struct NormGradient {
  float* x;
  float *weight, *bias;
};

struct Kernels {
  void (*activate)(float* out, const float* x, int64_t n, int32_t activation);
  // `sum`, unless null, gets what is normalised. `out` may be `x`.
  void (*add_norm)(float* out, const float* x, const float* residual, float* sum, int64_t rows, int64_t n, const Norm& norm);
  // Drops elements of some rows of `x`, from `row` of the whole matrix on. `out` may be `x`.
  void (*drop)(float* out, const float* x, int64_t row, int64_t rows, int64_t n, const Dropout& dropout);
  // out = LayerNorm(word + position + type), one row; `type` may be null.
  void (*embed_norm)(float* out, const float* word, const float* position, const float* type, int64_t n,
                     const Norm& norm);
  // Mean of `rows` rows; zeros when there are none.
  void (*mean)(float* out, const float* x, int64_t rows, int64_t n);
  void (*attention)(const AttentionTile& tile);
  void (*attention_backward)(const AttentionGradient& gradient);
  // Computes the columns of panels `first` to `last`, exclusive.
  void (*multiply)(const Product& product, int64_t first, int64_t last);
  void (*pack)(float* panels, const float* x, int64_t depth, int64_t width);
  void (*add_columns)(float* sums, const float* x, int64_t stride, int64_t rows, int64_t n);
  // Multiplies each gradient by the activation's derivative at x; `value`, unless null, gets the activation.
  void (*activate_backward)(float* gradient, float* value, const float* x, int64_t n, int32_t activation);
  // `x` is the sum that was normalised, `gradient` that of the result.
  void (*norm_backward)(const NormGradient& out, const float* gradient, const float* x, int64_t rows, int64_t n,
                        const Norm& norm);
};

namespace baseline {
extern const Kernels kernels;
extern const Int8Kernels int8;
}
#if defined(__x86_64__)
namespace avx2 {
extern const Kernels kernels;
extern const Int8Kernels int8;
}
namespace avx512 {
extern const Kernels kernels;
extern const Int8Kernels int8;
}
namespace avx_vnni {
extern const Int8Kernels int8;
}
namespace avx512_vnni {
extern const Int8Kernels int8;
}
namespace amx_int8 {
extern const Int8Kernels int8;
}
namespace avx512_bf16 {
extern const Bf16Kernels kernels;
}
namespace amx_bf16 {
extern const Bf16Kernels kernels;
}
#endif

}  // namespace souk
