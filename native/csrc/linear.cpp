#include "linear.h"

#include <c10/core/GradMode.h>

#include <vector>

#include "guard.h"

extern "C" {

// Packed linear layer; f32 if `scale` is null.
struct SoukLinear {
  const at::Tensor *panels, *bias;
  const at::Tensor *scale, *column;
  int64_t depth, width;
};
}

namespace souk {

using at::Tensor;

Tensor pack(const Tensor& weight) {
  const int64_t width = weight.size(0), depth = weight.size(1);
  const Tensor panels = at::empty({panels_of(width), depth, kPanel}, weight.options().requires_grad(false));
  auto* to = static_cast<float*>(panels.mutable_data_ptr());
  const auto* from = words_of(weight);
  const Kernels& table = kernels();
  at::parallel_for(0, panels_of(width), 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kPanel, last = std::min(width, end * kPanel);
    table.pack(to + first * depth, from + first * depth, depth, last - first);
  });
  return panels;
}

Tensor round_rows(const Bf16Kernels& table, const float* x, int64_t stride, int64_t rows, int64_t n) {
  const int64_t words = bf16_words(n);
  const Tensor rounded = at::empty({rows, words}, at::kInt);
  auto* to = rounded.mutable_data_ptr<int32_t>();
  for_rows(rows, n, [&](int64_t begin, int64_t end) {
    table.round_rows(to + begin * words, x + begin * stride, stride, end - begin, n);
  });
  return rounded;
}

namespace {

void multiply_bf16(const Bf16Kernels& table, const Layer& layer, float* out, const float* x, int64_t rows) {
  const Tensor rounded = round_rows(table, x, layer.depth, rows, layer.depth);
  const int64_t words = rounded.size(1);
  const Product product{out, layer.width, words_of(rounded), words, false, words_of(layer.panels), kPanel, words * kPanel,
                        data_or_null(layer.bias), rows, words, layer.width, false};
  for_panels(product, [&](int64_t begin, int64_t end) { table.multiply(product, begin, end); });
}

// The rows of `x` are quantised, each with its own scale.
void multiply_int8(const Int8Kernels& table, const Layer& layer, float* out, const float* x, int64_t rows) {
  const int64_t depth = layer.depth, words = layer.panels.size(1);
  const Tensor quantized = at::empty({rows, words}, at::kInt), factors = at::empty({2, rows}, at::kFloat);
  auto* q = quantized.mutable_data_ptr<int32_t>();
  auto *scale = factors.mutable_data_ptr<float>(), *shift = scale + rows;
  for_rows(rows, depth, [&](int64_t begin, int64_t end) {
    table.quantize(q + begin * words, scale + begin, shift + begin, x + begin * depth, end - begin, depth);
  });
  const Product product{out, layer.width, words_of(quantized), words, false, words_of(layer.panels), kPanel, words * kPanel,
                        nullptr, rows, words, layer.width, false};
  const Dequantization to_float{scale, shift, layer.scale.const_data_ptr<float>(), layer.column.const_data_ptr<float>(),
                                data_or_null(layer.bias)};
  for_panels(product, [&](int64_t begin, int64_t end) { table.multiply(product, to_float, begin, end); });
}

}  // namespace

Tensor forward(const Layer* layers, int64_t num_layers, int32_t between, const Tensor& x, const Ending& ending,
               const Kept& kept) {
  const Layer &first = layers[0], &last = layers[num_layers - 1];
  const int64_t rows = x.size(0), width = last.width;
  const Tensor result = at::empty({rows, width}, x.options().requires_grad(false));
  auto* results = result.mutable_data_ptr<float>();
  const auto* from = x.const_data_ptr<float>();
  const Kernels& table = kernels();
  const Int8Kernels& int8 = int8_kernels();
  const int64_t step = (first.bf16 || first.scale.defined()) && uses_tiles() ? kTileStep : kRowStep;
  for_chunks(rows, num_layers > 1 ? kMostRowsFused : kMostRows, step, [&](int64_t at, int64_t count) {
    const float* input = from + at * first.depth;
    Tensor wide;
    const auto product = [&](const Layer& layer, float* out) {
      if (layer.scale.defined()) return multiply_int8(int8, layer, out, input, count);
      if (layer.bf16) return multiply_bf16(*bf16_kernels(), layer, out, input, count);
      const Matrix matrix = in_panels(layer.panels, layer.depth, layer.width);
      multiply(table, product_of(out, input, count, matrix, data_or_null(layer.bias)));
    };
    if (num_layers > 1) {
      wide = at::empty({count, first.width}, result.options());
      auto* activated = wide.mutable_data_ptr<float>();
      float* raw = kept.between ? kept.between + at * first.width : activated;
      product(first, raw);
      for_rows(count, first.width, [&](int64_t begin, int64_t end) {
        table.activate(activated + begin * first.width, raw + begin * first.width, (end - begin) * first.width, between);
      });
      input = activated;
    }
    float* out = results + at * width;
    product(last, out);
    for_rows(count, width, [&](int64_t begin, int64_t end) {
      float* row = out + begin * width;
      if (ending.dropout.on) table.drop(row, row, at + begin, end - begin, width, ending.dropout);
      if (ending.residual)
        table.add_norm(row, row, ending.residual + (at + begin) * width, kept.sum ? kept.sum + (at + begin) * width : nullptr,
                       end - begin, width, ending.norm);
      else if (ending.activation != kNone)
        table.activate(row, row, (end - begin) * width, ending.activation);
    });
  });
  return result;
}

}  // namespace souk

using at::Tensor;
using souk::no_throw;

extern "C" {

int souk_pack_f32(const Tensor* weight, Tensor** out) {
  return no_throw([&] {
    const c10::NoGradGuard no_grad;
    *out = new Tensor(souk::pack(*weight));
  });
}

// out: panels of int8, and scale and column of Dequantization.
int souk_pack_int8(const Tensor* weight, Tensor* out[3]) {
  return no_throw([&] {
    const c10::NoGradGuard no_grad;
    const Tensor w = weight->detach();
    const Tensor scale = w.abs().amax(1).div_(127.0).clamp_min_(1e-30);
    const Tensor q = w.div(scale.unsqueeze(1)).round_().clamp_(-127, 127);
    const Tensor column = q.sum(1, false, at::kDouble).mul_(scale).to(at::kFloat);
    const int64_t width = w.size(0), depth = w.size(1), panels = souk::panels_of(width);
    const int64_t per_word = souk::int8_kernels().per_word, padded = souk::round_up(depth, per_word);
    const Tensor entries = q.to(per_word == 4 ? at::kChar : at::kShort);
    const Tensor words = at::constant_pad_nd(entries, {0, padded - depth, 0, panels * souk::kPanel - width})
                             .view({panels, souk::kPanel, padded / per_word, per_word});
    const Tensor parts[3] = {words.permute({0, 2, 1, 3}).contiguous(), scale, column};
    for (int i = 0; i < 3; i++) out[i] = new Tensor(parts[i]);
  });
}

int souk_forward(const SoukLinear* layers, int64_t num_layers, int32_t between, const Tensor* x,
                 const SoukEpilogue* epilogue, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const auto or_none = [](const Tensor* t) { return t ? *t : Tensor(); };
    std::vector<souk::Layer> packed;
    const int64_t per_word = souk::int8_kernels().per_word;
    for (int64_t i = 0; i < num_layers; i++) {
      const SoukLinear& l = layers[i];
      TORCH_CHECK(!l.scale || l.panels->size(3) == per_word, "the layer was packed for another instruction set");
      packed.push_back({*l.panels, or_none(l.bias), l.depth, l.width, false, or_none(l.scale), or_none(l.column)});
    }
    *out = new Tensor(souk::forward(packed.data(), num_layers, between, *x, souk::Ending(*epilogue), {}));
  });
}
}
