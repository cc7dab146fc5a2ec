// Products of rows with matrices, and the forward pass of packed linear layers in f32, for frozen weights and for training.
#pragma once
#include <ATen/ATen.h>

#include "chunks.h"
#include "kernels.h"

extern "C" {

// What follows a layer's product, as Rust says it.
struct SoukEpilogue {
  int32_t activation;
  const at::Tensor* residual;  // null: no AddNorm
  const at::Tensor* weight;
  const at::Tensor* bias;
  double eps;
  double dropout;  // of the product, before AddNorm; in training only
};
}

namespace souk {

inline int64_t panels_of(int64_t width) { return round_up(width, kPanel) / kPanel; }

// Calls f(first, last) for panels of a product; splits them over threads if this is not a worker and each gets enough to do.
template <class F>
void for_panels(const Product& product, const F& f) {
  // bytes of weight that are worth waking a thread for, if few rows use them
  constexpr int64_t kBytes = 4 << 20, kFewRows = 24;
  const int64_t bytes = product.depth * kPanel * sizeof(float) * std::max(product.rows, kFewRows) / kFewRows;
  at::parallel_for(0, panels_of(product.width), std::max<int64_t>(1, kBytes / bytes), f);
}

// Computes all columns of a product.
inline void multiply(const Kernels& kernels, const Product& product) {
  for_panels(product, [&](int64_t begin, int64_t end) { kernels.multiply(product, begin, end); });
}

// How products read a matrix: in panels, as souk_pack_* leave it, or row by row.
struct Matrix {
  const float* data;
  int64_t depth, width, stride, panel_step;
};

inline Matrix in_panels(const at::Tensor& panels, int64_t depth, int64_t width) {
  return {panels.const_data_ptr<float>(), depth, width, kPanel, depth * kPanel};
}

inline Matrix in_rows(const float* data, int64_t depth, int64_t width) { return {data, depth, width, width, kPanel}; }

// rows * matrix, of rows without gaps between them.
inline Product product_of(float* out, const float* x, int64_t rows, const Matrix& m, const float* bias = nullptr) {
  return {out, m.width, x, m.depth, false, m.data, m.stride, m.panel_step, bias, rows, m.depth, m.width, false};
}

inline const float* data_or_null(const at::Tensor& t) { return t.defined() ? t.const_data_ptr<float>() : nullptr; }

// Words of several bf16 or int8, as products take them.
inline const float* words_of(const at::Tensor& t) { return static_cast<const float*>(t.const_data_ptr()); }

// One packed layer: the weight's rows in panels, [width / kPanel rounded up, depth, kPanel] in f32. In bf16 and int8 the depth is in
// words; `scale` and `column` are those of Dequantization.
struct Layer {
  at::Tensor panels, bias;  // the bias may be undefined
  int64_t depth, width;
  bool bf16 = false;
  at::Tensor scale, column;  // int8 only
};

// Rounds rows to words of bf16 along them, [rows, words]; `stride` floats from row to row.
at::Tensor round_rows(const Bf16Kernels& table, const float* x, int64_t stride, int64_t rows, int64_t n);

// What follows the last layer: an activation, or dropout, the sum with a residual and its LayerNorm.
struct Ending {
  int32_t activation = kNone;
  const float* residual = nullptr;  // null: no norm
  Norm norm = {};
  Dropout dropout = {};

  explicit Ending(int32_t activation = kNone) : activation(activation) {}
  explicit Ending(const SoukEpilogue& epilogue) : activation(epilogue.activation) {
    if (!epilogue.residual) return;
    residual = epilogue.residual->const_data_ptr<float>();
    norm = {epilogue.weight->const_data_ptr<float>(), epilogue.bias->const_data_ptr<float>(),
            static_cast<float>(epilogue.eps)};
  }
};

// Where the backward pass will find the results before the activation between two layers, and before the norm; or null.
struct Kept {
  float *between = nullptr, *sum = nullptr;
};

// One layer, or two with an activation between them.
at::Tensor forward(const Layer* layers, int64_t num_layers, int32_t between, const at::Tensor& x, const Ending& ending,
                   const Kept& kept);

// Packs a weight [width, depth] of f32 or of words for forward.
at::Tensor pack(const at::Tensor& weight);

}  // namespace souk
