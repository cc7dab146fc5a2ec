#include "linear.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstring>
#include <vector>

#include "guard.h"

extern "C" {

// Packed linear layer; f32 if `column` is null. `weight` is in panels, or as oneDNN packs int8. `column` is, per output, the
// weight's scale times the sum of its weights.
struct SoukLinear {
  const at::Tensor *weight, *bias;
  const at::Tensor *scales, *zeros, *column;
  int64_t depth, width;
};
}

namespace souk {

using at::Tensor;

Tensor pack(const Tensor& weight) {
  const int64_t width = weight.size(0), depth = weight.size(1);
  const Tensor panels = at::empty({panels_of(width), depth, kPanel}, weight.options().requires_grad(false));
  auto* to = panels.mutable_data_ptr<float>();
  const auto* from = weight.const_data_ptr<float>();
  const Kernels& table = kernels();
  at::parallel_for(0, panels_of(width), 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPanel, last = std::min(width, end * kPanel);
    table.pack(to + first * depth, from + first * depth, depth, last - first);
  });
  return panels;
}

Tensor forward(const Layer* layers, int64_t num_layers, int32_t between, const Tensor& x, const Ending& ending,
               const Kept& kept) {
  const Layer &first = layers[0], &last = layers[num_layers - 1];
  const int64_t rows = x.size(0), width = last.width;
  const Tensor result = at::empty({rows, width}, x.options().requires_grad(false));
  auto* results = result.mutable_data_ptr<float>();
  const auto* from = x.const_data_ptr<float>();
  const Kernels& table = kernels();
  for_chunks(rows, num_layers > 1 ? kMostRowsFused : kMostRows, kRowStep, [&](int64_t at, int64_t count) {
    const float* input = from + at * first.depth;
    Tensor wide;
    const auto product = [&](const Layer& layer, float* out) {
      const Matrix matrix = in_panels(layer.panels, layer.depth, layer.width);
      multiply(table, product_of(out, input, count, matrix, data_or_null(layer.bias)));
    };
    if (num_layers > 1) {
      wide = at::empty({count, first.width}, result.options());
      auto* activated = wide.mutable_data_ptr<float>();
      float* raw = kept.between ? kept.between + at * first.width : activated;
      product(first, raw);
      for_rows(count, first.width, [&](int64_t begin, int64_t end) {
        table.activate(activated + begin * first.width, raw + begin * first.width, end - begin, first.width, {}, between);
      });
      input = activated;
    }
    float* out = results + at * width;
    product(last, out);
    for_rows(count, width, [&](int64_t begin, int64_t end) {
      float* row = out + begin * width;
      if (ending.residual)
        table.add_norm(row, row, ending.residual + (at + begin) * width, kept.sum ? kept.sum + (at + begin) * width : nullptr,
                       end - begin, width, {}, ending.norm);
      else if (ending.activation != kNone)
        table.activate(row, row, end - begin, width, {}, ending.activation);
    });
  });
  return result;
}

namespace {

using Scalars = c10::List<std::optional<at::Scalar>>;

// ---- int8: libtorch's oneDNN operators, which have no public C++ function ----

// oneDNN generates code for every new number of rows (up to 3 ms each), and packed batches have any number. So products only
// see multiples of kStep rows, and at most kMost if threads split the rows.
constexpr int64_t kStep = 16, kMost = 256, kMostFused = 128, kPackedFor = 128;

Tensor prepack_int8(const Tensor& weight) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("onednn::qlinear_prepack", "")
                             .typed<Tensor(Tensor, std::optional<c10::List<int64_t>>)>();
  return op.call(weight, c10::List<int64_t>({kPackedFor, weight.size(1)}));
}

Tensor linear_int8(const Tensor& x, const Tensor& weight, const Tensor& scales, const Tensor& zeros) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("onednn::qlinear_pointwise", "")
          .typed<Tensor(Tensor, double, int64_t, Tensor, Tensor, Tensor, std::optional<Tensor>, double, int64_t,
                        std::optional<at::ScalarType>, std::string_view, Scalars, std::string_view)>();
  return op.call(x, 1.0, 0, weight, scales, zeros, std::nullopt, 1.0, 0, at::kFloat, "none", Scalars(), "");
}

// Raw product of one chunk; `affine` and the row factors in `rows` turn it into the result.
struct Quantized {
  Tensor values, rows;
  Affine affine;
};

// Rows from `count` to `padded` are zero.
Quantized multiply(const Kernels& kernels, const SoukLinear& layer, const float* x, int64_t count, int64_t padded) {
  const int64_t depth = layer.depth;
  const auto options = layer.column->options();
  const Tensor quantized = at::empty({padded, depth}, options.dtype(at::kByte));
  const Tensor rows = at::empty({2, padded}, options);
  auto* q = quantized.mutable_data_ptr<uint8_t>();
  auto* scale = rows.mutable_data_ptr<float>();
  auto* shift = scale + padded;
  for_rows(count, depth, [&](int64_t begin, int64_t end) {
    kernels.quantize(q + begin * depth, scale + begin, shift + begin, x + begin * depth, end - begin, depth);
  });
  std::memset(q + count * depth, 0, (padded - count) * depth);
  const Affine affine{scale, shift, layer.column->const_data_ptr<float>(),
                      layer.bias ? layer.bias->const_data_ptr<float>() : nullptr};
  return {linear_int8(quantized, *layer.weight, *layer.scales, *layer.zeros), rows, affine};
}

// Turns the product into the result. `out` and the residual point to the chunk's first row.
void finish(const Kernels& kernels, const Quantized& y, int64_t rows, int64_t width, const Ending& ending, float* out) {
  const float* x = y.values.const_data_ptr<float>();
  for_rows(rows, width, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width, count = end - begin;
    const Affine affine{y.affine.scale + begin, y.affine.shift + begin, y.affine.column, y.affine.bias};
    if (ending.residual)
      kernels.add_norm(out + at, x + at, ending.residual + at, nullptr, count, width, affine, ending.norm);
    else
      kernels.activate(out + at, x + at, count, width, affine, ending.activation);
  });
}

Tensor forward_int8(const SoukLinear* layers, int64_t num_layers, int32_t between, const Tensor& x, const Ending& ending) {
  const int64_t rows = x.size(0), depth = layers[0].depth, width = layers[num_layers - 1].width;
  const Tensor out = at::empty({rows, width}, x.options());
  auto* to = out.mutable_data_ptr<float>();
  const auto* from = x.const_data_ptr<float>();
  const Ending activation(between);
  const Kernels& table = kernels();
  for_chunks(rows, num_layers > 1 ? kMostFused : kMost, kStep, [&](int64_t first, int64_t count) {
    const int64_t padded = round_up(count, kStep);
    Quantized y = multiply(table, layers[0], from + first * depth, count, padded);
    for (int64_t i = 1; i < num_layers; i++) {
      auto* values = y.values.mutable_data_ptr<float>();
      finish(table, y, count, layers[i - 1].width, activation, values);
      y = multiply(table, layers[i], values, count, padded);
    }
    Ending here = ending;
    if (here.residual) here.residual += first * width;
    finish(table, y, count, width, here, to + first * width);
  });
  return out;
}

}  // namespace
}  // namespace souk

using at::Tensor;
using souk::no_throw;

extern "C" {

int souk_pack_f32(const Tensor* weight, Tensor** out) {
  return no_throw([&] {
    const at::NoGradGuard no_grad;
    *out = new Tensor(souk::pack(*weight));
  });
}

// out: packed weight, scale per output, zero points (all 0), and per output scale * sum of the quantised weights.
int souk_pack_int8(const Tensor* weight, Tensor* out[4]) {
  return no_throw([&] {
    const at::NoGradGuard no_grad;
    const Tensor w = weight->detach();
    const Tensor scale = w.abs().amax(1).div_(127.0).clamp_min_(1e-30);
    const Tensor q = w.div(scale.unsqueeze(1)).round_().clamp_(-127, 127);
    const Tensor column = q.sum(1, false, at::kDouble).mul_(scale).to(at::kFloat);
    const Tensor zeros = at::zeros({w.size(0)}, w.options().dtype(at::kInt));
    const Tensor parts[4] = {souk::prepack_int8(q.to(at::kChar)), scale, zeros, column};
    for (int i = 0; i < 4; i++) out[i] = new Tensor(parts[i]);
  });
}

int souk_forward(const SoukLinear* layers, int64_t num_layers, int32_t between, const Tensor* x,
                 const SoukEpilogue* epilogue, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const souk::Ending ending(*epilogue);
    if (layers[0].column) {
      *out = new Tensor(souk::forward_int8(layers, num_layers, between, *x, ending));
      return;
    }
    std::vector<souk::Layer> packed;
    for (int64_t i = 0; i < num_layers; i++)
      packed.push_back({*layers[i].weight, layers[i].bias ? *layers[i].bias : Tensor(), layers[i].depth, layers[i].width});
    *out = new Tensor(souk::forward(packed.data(), num_layers, between, *x, ending, {}));
  });
}
}
