// Forward pass of packed linear layers in f32, for frozen weights and for training.
#pragma once
#include <ATen/ATen.h>

#include "kernels.h"

namespace souk {

// One packed layer: the weight's rows in panels [width / kPanel rounded up, depth, kPanel].
struct Layer {
  at::Tensor panels, bias;  // the bias may be undefined
  int64_t depth, width;
};

// What follows the last layer: an activation, or the sum with a residual and its LayerNorm.
struct Ending {
  int32_t activation = kNone;
  const float* residual = nullptr;  // null: no norm
  Norm norm = {};
};

// Where the backward pass will find the results before the activation between two layers, and before the norm; or null.
struct Kept {
  float *between = nullptr, *sum = nullptr;
};

// One layer, or two with an activation between them.
at::Tensor forward(const Layer* layers, int64_t num_layers, int32_t between, const at::Tensor& x, const Ending& ending,
                   const Kept& kept);

// Packs a weight [width, depth] for forward.
at::Tensor pack(const at::Tensor& weight);

}  // namespace souk
