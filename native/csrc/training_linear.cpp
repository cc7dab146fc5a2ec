// Linear layers whose gradients libtorch records: one or two layers with an activation between them, optionally followed by
// dropout, the sum with a residual and its LayerNorm.
//
// The backward pass takes some hundred rows at a time. It computes their gradients from the end of the layers to x, and adds
// their part to the gradients of the weights while they are in the cache. It reads the weights as they are: only the forward
// pass would read them across their rows, and needs panels. Sums run in the order of rows for any number of threads.
//
// With bf16 products, everything else stays in f32: both factors are rounded where they are multiplied.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <vector>

#include "draw.h"
#include "guard.h"
#include "linear.h"

using at::Tensor;
using souk::Kernels;
using souk::no_throw;

extern "C" {

// Linear layers with the same input, as one: their parameters, their weights in panels, and the biases of all, or null if none
// has one. For bf16 products, panels are words, and `paired` has each weight in words across its rows; else it is null.
struct SoukTrainedLinear {
  const Tensor *panels, *bias;
  const Tensor* const* weights;
  const Tensor* const* biases;  // null for a layer without one
  const Tensor* const* paired;
  int64_t parts, depth, width;
};
}

namespace souk {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Rows in each unit of work that threads share, and outputs of a weight's gradient.
constexpr int64_t kUnit = 96, kOutputs = kMostTurned;

// Rows per pass of the backward pass: as many units for each thread.
int64_t rows_per_pass() {
  const int64_t threads = at::get_num_threads();
  return kUnit * threads * std::max<int64_t>(1, 4 / threads);
}

// Rounds rows to words of bf16 across each two of them, [rows / 2 rounded up, n].
Tensor pair_rows(const Bf16Kernels& table, const float* x, int64_t rows, int64_t n) {
  const Tensor paired = at::empty({bf16_words(rows), n}, at::kInt);
  auto* to = paired.mutable_data_ptr<int32_t>();
  for_rows(paired.size(0), 2 * n, [&](int64_t begin, int64_t end) {
    table.pair_rows(to + begin * n, x + 2 * begin * n, n, std::min(rows, 2 * end) - 2 * begin, n);
  });
  return paired;
}

struct Part {
  SavedVariable weight;
  Tensor paired;  // for bf16 products
  int64_t width;
  uint32_t weight_edge, bias_edge;
};

struct TrainedLayer {
  int64_t depth, width;
  std::vector<Part> parts;
};

// Order of the node's inputs.
constexpr uint32_t kX = 0, kResidual = 1, kNormWeight = 2, kNormBias = 3, kParameters = 4;

// A layer during the backward pass: its weights, and the gradients of its parameters, filled some rows at a time.
class LayerGradients {
 public:
  template <class Needed>
  LayerGradients(const TrainedLayer& layer, const at::TensorOptions& options, const Needed& needed)
      : layer_(layer), bf16_(layer.parts[0].paired.defined() ? bf16_kernels() : nullptr) {
    for (const Part& part : layer.parts) {
      weights_.push_back(part.weight.unpack());
      d_weights_.push_back(needed(part.weight_edge) ? at::zeros({part.width, layer.depth}, options) : Tensor());
      d_biases_.push_back(needed(part.bias_edge) ? at::zeros({part.width}, options) : Tensor());
    }
  }

  // Sets `dx`, or adds to it, from the gradient of the layer's result.
  void input(const Kernels& table, float* dx, const float* gradient, int64_t rows, bool add) const {
    for (size_t i = 0; i < weights_.size(); i++) {
      const int64_t width = layer_.parts[i].width;
      if (bf16_) {
        const Tensor rounded = round_rows(*bf16_, gradient, layer_.width, rows, width);
        const Matrix weight = in_rows(words_of(layer_.parts[i].paired), bf16_words(width), layer_.depth);
        Product product = product_of(dx, words_of(rounded), rows, weight);
        product.add = add || i > 0;
        for_panels(product, [&](int64_t begin, int64_t end) { bf16_->multiply(product, begin, end); });
      } else {
        Product product = product_of(dx, gradient, rows, in_rows(weights_[i].const_data_ptr<float>(), width, layer_.depth));
        product.x_stride = layer_.width;
        product.add = add || i > 0;
        multiply(table, product);
      }
      gradient += width;
    }
  }

  // Adds what `rows` rows of the layer's input and of its result's gradient contribute.
  void add(const Kernels& table, const float* x, const float* gradient, int64_t rows) {
    Tensor paired_x, paired_gradient;
    const float *x_words = x, *words = gradient;
    if (bf16_ && has_weights()) {
      paired_x = pair_rows(*bf16_, x, rows, layer_.depth);
      paired_gradient = pair_rows(*bf16_, gradient, rows, layer_.width);
      x_words = words_of(paired_x);
      words = words_of(paired_gradient);
    }
    const auto multiply = bf16_ ? bf16_->multiply : table.multiply;
    const int64_t summed = bf16_ ? bf16_words(rows) : rows;
    for (size_t i = 0; i < weights_.size(); i++) {
      const int64_t width = layer_.parts[i].width, depth = layer_.depth, panels = panels_of(depth);
      auto* d_weight = d_weights_[i].defined() ? d_weights_[i].mutable_data_ptr<float>() : nullptr;
      auto* d_bias = d_biases_[i].defined() ? d_biases_[i].mutable_data_ptr<float>() : nullptr;
      // with more threads than units, threads share the columns of a unit
      const int64_t units = round_up(width, kOutputs) / kOutputs;
      const int64_t slices = std::min(panels, (2 * at::get_num_threads() + units - 1) / units);
      at::parallel_for(0, units * slices, 1, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; at++) {
          const int64_t first = at / slices * kOutputs, slice = at % slices, count = std::min(kOutputs, width - first);
          if (d_bias && slice == 0) table.add_columns(d_bias + first, gradient + first, layer_.width, rows, count);
          if (!d_weight) continue;
          Product product = product_of(d_weight + first * depth, words + first, count, in_rows(x_words, summed, depth));
          product.x_stride = layer_.width;
          product.turned = product.add = true;
          multiply(product, panels * slice / slices, panels * (slice + 1) / slices);
        }
      });
      gradient += width;
      words += width;
    }
  }

  bool has_weights() const {
    return std::any_of(d_weights_.begin(), d_weights_.end(), [](const Tensor& t) { return t.defined(); });
  }

  void give(variable_list& to) {
    for (size_t i = 0; i < layer_.parts.size(); i++) {
      to[layer_.parts[i].weight_edge] = d_weights_[i];
      to[layer_.parts[i].bias_edge] = d_biases_[i];
    }
  }

 private:
  const TrainedLayer& layer_;
  const Bf16Kernels* bf16_;  // null for products of f32
  std::vector<Tensor> weights_, d_weights_, d_biases_;
};

struct TrainedLinears : torch::autograd::Node {
  std::vector<TrainedLayer> layers;
  int32_t between = kNone;
  float eps = 0;
  bool has_norm = false;
  bool residual_is_x = false;  // its gradient is then part of that of x
  Dropout dropout;
  SavedVariable x, between_rows, sum, norm_weight;

  std::string name() const override { return "SoukTrainedLinears"; }

  void release_variables() override {
    for (SavedVariable* saved : {&x, &between_rows, &sum, &norm_weight}) saved->reset_data();
    for (TrainedLayer& layer : layers)
      for (Part& part : layer.parts) part.weight.reset_data();
  }

  variable_list apply(variable_list&& gradients) override;
};

// Sums over rows of a norm's gradients, in units of rows, so that they do not depend on the threads.
class NormSums {
 public:
  NormSums(int64_t rows, int64_t width, const at::TensorOptions& options)
      : sums_(at::zeros({round_up(rows, kUnit) / kUnit, 2, width}, options)), width_(width) {}
  float* weight(int64_t row) { return sums_.mutable_data_ptr<float>() + row / kUnit * 2 * width_; }
  float* bias(int64_t row) { return weight(row) + width_; }
  Tensor total() const { return sums_.sum(0); }

 private:
  Tensor sums_;
  int64_t width_;
};

variable_list TrainedLinears::apply(variable_list&& gradients) {
  const at::AutoDispatchBelowADInplaceOrView no_grad;
  variable_list to(num_outputs());
  if (!gradients[0].defined()) return to;
  const auto needed = [&](uint32_t edge) { return task_should_compute_output(edge); };
  const Tensor outer = gradients[0].contiguous(), input = x.unpack(), scale = norm_weight.unpack();
  const auto options = outer.options().requires_grad(false);
  const TrainedLayer &first = layers.front(), &last = layers.back();
  const bool two = layers.size() == 2;
  const Tensor raw = two ? between_rows.unpack() : Tensor(), sums = has_norm ? sum.unpack() : Tensor();
  const int64_t rows = outer.size(0), pass = rows_per_pass(), block = std::min(rows, pass);
  const Kernels& table = kernels();

  const Tensor dx = needed(kX) ? at::empty({rows, first.depth}, options) : Tensor();
  // gradient of what is normalised: the whole of it if it is the residual's too
  const bool whole = has_norm && needed(kResidual);
  const Tensor inner = has_norm ? at::empty({whole ? rows : block, last.width}, options) : Tensor();
  const Tensor dropped = dropout.on ? at::empty({block, last.width}, options) : Tensor();
  const Tensor d_between = two ? at::empty({block, first.width}, options) : Tensor();
  NormSums norm_sums(has_norm ? rows : 0, last.width, options);
  LayerGradients first_layer(first, options, needed);
  std::vector<LayerGradients> last_layer;
  if (two) last_layer.emplace_back(last, options, needed);
  const Tensor activated = two && last_layer[0].has_weights() ? at::empty_like(d_between) : Tensor();

  const Norm norm{data_or_null(scale), nullptr, eps};
  for (int64_t begin = 0; begin < rows; begin += pass) {
    const int64_t count = std::min(pass, rows - begin);
    const auto* given = outer.const_data_ptr<float>() + begin * last.width;
    auto* d_sum = has_norm ? inner.mutable_data_ptr<float>() + (whole ? begin * last.width : 0) : nullptr;
    auto* d_last = dropout.on ? dropped.mutable_data_ptr<float>() : d_sum;
    auto* d_first = two ? d_between.mutable_data_ptr<float>() : nullptr;
    auto* wide = activated.defined() ? activated.mutable_data_ptr<float>() : nullptr;
    const float* end = has_norm ? d_last : given;
    const float* start = two ? d_first : end;
    at::parallel_for(0, round_up(count, kUnit) / kUnit, 1, [&](int64_t unit, int64_t units) {
      for (; unit < units; unit++) {
        const int64_t row = unit * kUnit, here = std::min(kUnit, count - row), at = begin + row;
        if (has_norm)
          table.norm_backward({d_sum + row * last.width, norm_sums.weight(at), norm_sums.bias(at)}, given + row * last.width,
                              sums.const_data_ptr<float>() + at * last.width, here, last.width, norm);
        if (dropout.on) table.drop(d_last + row * last.width, d_sum + row * last.width, at, here, last.width, dropout);
        if (two) {
          const int64_t offset = row * first.width;
          const auto* values = raw.const_data_ptr<float>() + at * first.width;
          last_layer[0].input(table, d_first + offset, end + row * last.width, here, false);
          table.activate_backward(d_first + offset, wide ? wide + offset : nullptr, values, here * first.width, between);
        }
        if (!dx.defined()) continue;
        auto* out = dx.mutable_data_ptr<float>() + at * first.depth;
        if (residual_is_x) std::copy_n(d_sum + row * last.width, here * first.depth, out);
        first_layer.input(table, out, start + row * first.width, here, residual_is_x);
      }
    });
    first_layer.add(table, input.const_data_ptr<float>() + begin * first.depth, start, count);
    if (two) last_layer[0].add(table, wide, end, count);
  }
  to[kX] = dx;
  if (whole) to[kResidual] = inner;
  if (has_norm && (needed(kNormWeight) || needed(kNormBias))) {
    const Tensor total = norm_sums.total();
    to[kNormWeight] = total[0];
    to[kNormBias] = total[1];
  }
  first_layer.give(to);
  if (two) last_layer[0].give(to);
  return to;
}

Tensor or_none(const Tensor* t) { return t ? *t : Tensor(); }

Tensor train(const SoukTrainedLinear* layers, int64_t num_layers, int32_t between, const Tensor& x,
             const SoukEpilogue& epilogue) {
  const Tensor residual = or_none(epilogue.residual), weight = or_none(epilogue.weight), bias = or_none(epilogue.bias);
  variable_list parameters;
  std::vector<Layer> packed;
  for (int64_t i = 0; i < num_layers; i++) {
    const SoukTrainedLinear& layer = layers[i];
    packed.push_back({*layer.panels, or_none(layer.bias), layer.depth, layer.width, layer.paired != nullptr, {}, {}});
    for (int64_t part = 0; part < layer.parts; part++) {
      parameters.push_back(*layer.weights[part]);
      parameters.push_back(or_none(layer.biases[part]));
    }
  }
  const bool residual_is_x = residual.defined() && residual.is_same(x);
  const bool records = torch::autograd::compute_requires_grad(x, residual, weight, bias, at::TensorList(parameters));
  Ending ending(epilogue);
  ending.dropout = draw_dropout(epilogue.dropout);
  const auto rows_of = [&](int64_t width) {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    return at::empty({x.size(0), width}, x.options().requires_grad(false));
  };
  const Tensor raw = records && num_layers == 2 ? rows_of(layers[0].width) : Tensor();
  const Tensor sum = records && residual.defined() ? rows_of(layers[num_layers - 1].width) : Tensor();
  Tensor result;
  {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const Kept kept{raw.defined() ? raw.mutable_data_ptr<float>() : nullptr,
                    sum.defined() ? sum.mutable_data_ptr<float>() : nullptr};
    result = forward(packed.data(), num_layers, between, x, ending, kept);
  }
  if (!records) return result;
  auto node = std::shared_ptr<TrainedLinears>(new TrainedLinears(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(x, residual_is_x ? Tensor() : residual, weight, bias,
                                                           at::TensorList(parameters)));
  uint32_t edge = kParameters;
  for (int64_t i = 0; i < num_layers; i++) {
    TrainedLayer layer{layers[i].depth, layers[i].width, {}};
    for (int64_t part = 0; part < layers[i].parts; part++, edge += 2) {
      const Tensor& weight = *layers[i].weights[part];
      const Tensor paired = layers[i].paired ? *layers[i].paired[part] : Tensor();
      layer.parts.push_back({SavedVariable(weight, false), paired, weight.size(0), edge, edge + 1});
    }
    node->layers.push_back(std::move(layer));
  }
  node->between = between;
  node->eps = ending.norm.eps;
  node->has_norm = residual.defined();
  node->residual_is_x = residual_is_x;
  node->dropout = ending.dropout;
  node->x = SavedVariable(x, false);
  node->between_rows = SavedVariable(raw, false);
  node->sum = SavedVariable(sum, false);
  node->norm_weight = SavedVariable(weight, false);
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace
}  // namespace souk

extern "C" {

// Packs the rows of all weights, in f32 or in words of bf16.
int souk_pack_training(const Tensor* const* weights, int64_t parts, int32_t bf16, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    std::vector<Tensor> all;
    for (int64_t i = 0; i < parts; i++) all.push_back(weights[i]->detach());
    const Tensor whole = parts == 1 ? all[0] : at::cat(all);
    const int64_t width = whole.size(0), depth = whole.size(1);
    *out = new Tensor(souk::pack(
        bf16 ? souk::round_rows(*souk::bf16_kernels(), whole.const_data_ptr<float>(), depth, width, depth) : whole));
  });
}

// A weight in words of bf16 across its rows.
int souk_pair_rows(const Tensor* weight, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    *out = new Tensor(souk::pair_rows(*souk::bf16_kernels(), weight->const_data_ptr<float>(), weight->size(0), weight->size(1)));
  });
}

// `epilogue` has a norm or nothing, no activation.
int souk_train_linear(const SoukTrainedLinear* layers, int64_t num_layers, int32_t between, const Tensor* x,
                      const SoukEpilogue* epilogue, Tensor** out) {
  return no_throw([&] { *out = new Tensor(souk::train(layers, num_layers, between, *x, *epilogue)); });
}
}
