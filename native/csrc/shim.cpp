// Functions called from Rust: libtorch's oneDNN products on chunks of rows, with the row kernels run on each chunk while it is
// in the cache. Every function catches all C++ exceptions and reports them through souk_last_error. Callers check shapes, types
// and layouts.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "guard.h"
#include "kernels.h"

namespace {

using at::Tensor;
using souk::Affine;
using souk::no_throw;
using souk::Kernels;
using souk::last_error;
using souk::Norm;
using Scalars = c10::List<std::optional<at::Scalar>>;

thread_local int forced_isa = -1;

// ---- which kernels ----

bool isa_supported(int isa) {
  if (isa == 0) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == 1) return avx2;
  if (isa == 2)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
  return false;
}

const Kernels& table(int isa) {
#if defined(__x86_64__)
  if (isa == 2) return souk::avx512::kernels;
  if (isa == 1) return souk::avx2::kernels;
#endif
  (void)isa;
  return souk::baseline::kernels;
}

// Call this on the caller's thread: the selection is thread-local, and workers get the table passed.
const Kernels& kernels() {
  static const int best = isa_supported(2) ? 2 : isa_supported(1) ? 1 : 0;
  return table(forced_isa >= 0 ? forced_isa : best);
}

// ---- libtorch's oneDNN operators, which have no public C++ function ----

Tensor reorder_weight(const Tensor& weight, int64_t rows) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                             .typed<Tensor(const Tensor&, std::optional<int64_t>)>();
  return op.call(weight, rows);
}

Tensor linear_f32(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
          .typed<Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, std::string_view, Scalars,
                        std::optional<std::string_view>)>();
  return op.call(x, weight, bias, "none", Scalars(), std::nullopt);
}

Tensor prepack_int8(const Tensor& weight, int64_t rows) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("onednn::qlinear_prepack", "")
                             .typed<Tensor(Tensor, std::optional<c10::List<int64_t>>)>();
  return op.call(weight, c10::List<int64_t>({rows, weight.size(1)}));
}

Tensor linear_int8(const Tensor& x, const Tensor& weight, const Tensor& scales, const Tensor& zeros) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("onednn::qlinear_pointwise", "")
          .typed<Tensor(Tensor, double, int64_t, Tensor, Tensor, Tensor, std::optional<Tensor>, double, int64_t,
                        std::optional<at::ScalarType>, std::string_view, Scalars, std::string_view)>();
  return op.call(x, 1.0, 0, weight, scales, zeros, std::nullopt, 1.0, 0, at::kFloat, "none", Scalars(), "");
}

// ---- chunks of rows ----

// oneDNN generates code for every new number of rows (up to 3 ms each), and packed batches have any number. So products only
// see multiples of kStep rows, at most kMostRows if threads split the rows, and fewer if a second layer follows, so that the
// wide intermediate rows stay in the cache.
constexpr int64_t kStep = 16, kLeastRows = 32, kMostRows = 256, kMostRowsFused = 128, kPackedFor = 128;

// One product that oneDNN splits over threads, if there are too few rows to split into chunks.
int64_t rows_per_chunk(int64_t rows, int64_t threads, int64_t most) {
  if (threads > 1 && rows < kLeastRows * threads) return souk::round_up(rows, kStep);
  const int64_t rounds = (rows + threads * most - 1) / (threads * most);
  return souk::round_up((rows + threads * rounds - 1) / (threads * rounds), kStep);
}

// Calls f(first, rows, padded rows) for each chunk; oneDNN uses one thread if chunks run in parallel.
template <class F>
void for_chunks(int64_t rows, int64_t most, const F& f) {
  if (rows == 0) return;
  const int64_t size = rows_per_chunk(rows, at::in_parallel_region() ? 1 : at::get_num_threads(), most);
  const int64_t chunks = (rows + size - 1) / size;
  const auto chunk = [&](int64_t i) {
    const int64_t count = std::min(size, rows - i * size);
    f(i * size, count, souk::round_up(count, kStep));
  };
  if (chunks == 1) return chunk(0);
  at::parallel_for(0, chunks, 1, [&](int64_t begin, int64_t end) {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    if (omp_in_parallel()) omp_set_num_threads(1);  // holds for this worker in this region only
    for (int64_t i = begin; i < end; i++) chunk(i);
  });
}

// Row kernels of a chunk that is the whole input may run in parallel; inside a worker this runs serially.
template <class F>
void for_rows(int64_t rows, int64_t width, const F& f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(width, 1)), f);
}

}  // namespace

extern "C" {

// Packed linear layer; f32 if `column` is null. `column` is, per output, the weight scale times the sum of the weights.
// `panels` is a second copy of the weight for few rows; null if it would take too much memory.
struct SoukLinear {
  const Tensor *weight, *panels, *bias;
  const Tensor *scales, *zeros, *column;
  int64_t depth, width;
};

struct SoukEpilogue {
  int32_t activation;
  const Tensor* residual;  // null: no AddNorm
  const Tensor* weight;
  const Tensor* bias;
  double eps;
};

// Properties of a tensor for the checks in Rust.
struct SoukLayout {
  int32_t dense;  // 1 when defined, strided, on the CPU, and not lazily negated
  int32_t kind;   // at::ScalarType
  int64_t dims;
  int64_t sizes[4];
  int64_t strides[4];
};
}

namespace {

std::optional<Tensor> optional(const Tensor* t) { return t ? std::optional<Tensor>(*t) : std::nullopt; }

// Raw product of one chunk; `affine` and the row factors in `rows` turn it into the result.
struct Product {
  Tensor values, rows;
  Affine affine;
};

// Minimum bytes of weight per thread.
constexpr int64_t kSlimBytes = 4 << 20;

Tensor slim(const Kernels& kernels, const SoukLinear& layer, const Tensor& x, int64_t rows) {
  const Tensor out = at::empty({rows, layer.width}, x.options());
  const souk::SlimProduct product{out.mutable_data_ptr<float>(), x.const_data_ptr<float>(),
                                  layer.panels->const_data_ptr<float>(),
                                  layer.bias ? layer.bias->const_data_ptr<float>() : nullptr,
                                  rows, layer.depth, layer.width};
  const int64_t panels = layer.panels->size(0), bytes = layer.depth * souk::kPanel * sizeof(float);
  at::parallel_for(0, panels, std::max<int64_t>(1, kSlimBytes / bytes),
                   [&](int64_t begin, int64_t end) { kernels.slim(product, begin, end); });
  return out;
}

// `x` has at least `padded` rows, of which `count` are used, or fewer if it is a view at the end of the input.
Product multiply(const Kernels& kernels, const SoukLinear& layer, const Tensor& x, int64_t count, int64_t padded) {
  const int64_t depth = layer.depth;
  if (layer.panels && count <= souk::kSlimRows) return {slim(kernels, layer, x, count), {}, {}};
  if (!layer.column) {
    if (x.size(0) == padded) return {linear_f32(x, *layer.weight, optional(layer.bias)), {}, {}};
    const Tensor more = at::zeros({padded, depth}, x.options());
    std::memcpy(more.mutable_data_ptr<float>(), x.const_data_ptr<float>(), count * depth * sizeof(float));
    return {linear_f32(more, *layer.weight, optional(layer.bias)), {}, {}};
  }
  const Tensor quantized = at::empty({padded, depth}, x.options().dtype(at::kByte));
  const Tensor rows = at::empty({2, padded}, x.options());
  auto* q = quantized.mutable_data_ptr<uint8_t>();
  auto* scale = rows.mutable_data_ptr<float>();
  auto* shift = scale + padded;
  const float* input = x.const_data_ptr<float>();
  for_rows(count, depth, [&](int64_t begin, int64_t end) {
    kernels.quantize(q + begin * depth, scale + begin, shift + begin, input + begin * depth, end - begin, depth);
  });
  std::memset(q + count * depth, 0, (padded - count) * depth);
  const Affine affine{scale, shift, layer.column->const_data_ptr<float>(),
                      layer.bias ? layer.bias->const_data_ptr<float>() : nullptr};
  return {linear_int8(quantized, *layer.weight, *layer.scales, *layer.zeros), rows, affine};
}

Affine from_row(Affine affine, int64_t row) {
  if (affine.scale) affine.scale += row, affine.shift += row;
  return affine;
}

// Turns the product into the result. `out` and `residual` point to the chunk's first row.
void finish(const Kernels& kernels, const Product& y, int64_t rows, int64_t width, const SoukEpilogue& epilogue,
            float* out, const float* residual) {
  const float* x = y.values.const_data_ptr<float>();
  for_rows(rows, width, [&](int64_t begin, int64_t end) {
    const int64_t at = begin * width, count = end - begin;
    const Affine affine = from_row(y.affine, begin);
    if (!residual) return kernels.activate(out + at, x + at, count, width, affine, epilogue.activation);
    const Norm norm{epilogue.weight->const_data_ptr<float>(), epilogue.bias->const_data_ptr<float>(),
                    static_cast<float>(epilogue.eps)};
    kernels.add_norm(out + at, x + at, residual + at, count, width, affine, norm);
  });
}

// One or more layers with an activation between them; intermediate results exist for one chunk at a time.
Tensor forward(const SoukLinear* layers, int64_t num_layers, int32_t between, const Tensor& x,
               const SoukEpilogue& epilogue) {
  const int64_t rows = x.size(0), width = layers[num_layers - 1].width;
  const Tensor out = at::empty({rows, width}, x.options());
  auto* to = out.mutable_data_ptr<float>();
  const float* residual = epilogue.residual ? epilogue.residual->const_data_ptr<float>() : nullptr;
  const SoukEpilogue activation{between, nullptr, nullptr, nullptr, 0};
  const Kernels& table = kernels();
  for_chunks(rows, num_layers > 1 ? kMostRowsFused : kMostRows, [&](int64_t first, int64_t count, int64_t padded) {
    Product y = multiply(table, layers[0], x.narrow(0, first, count), count, padded);
    for (int64_t i = 1; i < num_layers; i++) {
      // In place. Padding rows stay as they are: finite, and no other row depends on them.
      finish(table, y, count, layers[i - 1].width, activation, y.values.mutable_data_ptr<float>(), nullptr);
      y = multiply(table, layers[i], y.values, count, padded);
    }
    finish(table, y, count, width, epilogue, to + first * width, residual ? residual + first * width : nullptr);
  });
  return out;
}

// Minimum multiplications per thread.
constexpr int64_t kAttentionWork = 1 << 19;

// Tiles of all segments and heads; threads draw them from a counter, because segments differ too much for a static split.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const int64_t* starts, int64_t segments, bool causal,
              int64_t window, double scale) {
  const int64_t rows = q.size(0), heads = q.size(1), dim = q.size(2), group = heads / k.size(1);
  Tensor out = at::empty({rows, heads * dim}, q.options());
  struct Block {
    int64_t start, length, first, last;
  };
  std::vector<Block> blocks;
  for (int64_t s = 0; s < segments; s++)
    for (int64_t first = 0, length = starts[s + 1] - starts[s]; first < length; first += souk::kQueryRows)
      blocks.push_back({starts[s], length, first, std::min(length, first + souk::kQueryRows)});
  const Kernels& table = kernels();
  const int64_t units = static_cast<int64_t>(blocks.size()) * heads;
  std::atomic<int64_t> next{0};
  int64_t work = 0;
  for (const Block& b : blocks) work += (b.last - b.first) * b.length * heads * dim;
  const int64_t worth = std::min<int64_t>(units, 1 + work / kAttentionWork);
  const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), worth));
  // All heads of a block at once read whole rows, which suits the prefetcher; with few blocks the split is finer.
  const int64_t take = units >= 8 * threads * heads ? heads : 1;
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const Tensor scratch = at::empty({souk::attention_scratch(dim)}, q.options());
    for (int64_t at; (at = next.fetch_add(take, std::memory_order_relaxed)) < units;) {
      for (int64_t unit = at; unit < std::min(units, at + take); unit++) {
        const Block& b = blocks[unit / heads];
        const int64_t head = unit % heads, shared = head / group;
        souk::AttentionTile tile{
            q.const_data_ptr<float>() + b.start * q.stride(0) + head * q.stride(1),
            k.const_data_ptr<float>() + b.start * k.stride(0) + shared * k.stride(1),
            v.const_data_ptr<float>() + b.start * v.stride(0) + shared * v.stride(1),
            out.mutable_data_ptr<float>() + b.start * heads * dim + head * dim,
            q.stride(0), k.stride(0), v.stride(0), heads * dim,
            b.length, b.first, b.last, dim, window, causal, static_cast<float>(scale),
            scratch.mutable_data_ptr<float>()};
        table.attention(tile);
      }
    }
  });
  return out;
}

}  // namespace

extern "C" {

const char* souk_last_error() { return last_error.c_str(); }

const char* souk_show_config() {
  static thread_local std::string text;
  return no_throw([] { text = at::show_config(); }) == 0 ? text.c_str() : "";
}

int souk_force_isa(int isa) {
  if (isa >= 0 && !isa_supported(isa)) return -1;
  forced_isa = isa;
  return 0;
}

int souk_supports_int8() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512vnni") || __builtin_cpu_supports("avxvnni");
#else
  return 0;
#endif
}

int souk_layout(const Tensor* t, SoukLayout* out) {
  return no_throw([&] {
    *out = {};
    if (!t->defined() || t->layout() != at::kStrided || !t->device().is_cpu() || t->is_neg()) return;
    out->dense = 1;
    out->kind = static_cast<int32_t>(t->scalar_type());
    out->dims = t->dim();
    for (int64_t i = 0; i < std::min<int64_t>(t->dim(), 4); i++) {
      out->sizes[i] = t->size(i);
      out->strides[i] = t->stride(i);
    }
  });
}

int souk_pack_f32(const Tensor* weight, Tensor** out) {
  return no_throw([&] {
    const at::NoGradGuard no_grad;
    *out = new Tensor(reorder_weight(weight->detach(), kPackedFor));
  });
}

// out: the weight [out, in] in panels.
int souk_pack_panels(const Tensor* weight, Tensor** out) {
  return no_throw([&] {
    const at::NoGradGuard no_grad;
    const int64_t width = weight->size(0), depth = weight->size(1);
    const int64_t panels = souk::round_up(width, souk::kPanel) / souk::kPanel;
    const Tensor whole = at::constant_pad_nd(weight->detach(), {0, 0, 0, panels * souk::kPanel - width});
    *out = new Tensor(whole.view({panels, souk::kPanel, depth}).transpose(1, 2).contiguous());
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
    const Tensor packed = prepack_int8(q.to(at::kChar), kPackedFor);
    const Tensor parts[4] = {packed, scale, zeros, column};
    for (int i = 0; i < 4; i++) out[i] = new Tensor(parts[i]);
  });
}

int souk_forward(const SoukLinear* layers, int64_t num_layers, int32_t between, const Tensor* x,
                 const SoukEpilogue* epilogue, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    *out = new Tensor(forward(layers, num_layers, between, *x, *epilogue));
  });
}

int souk_attention(const Tensor* q, const Tensor* k, const Tensor* v, const int64_t* starts, int64_t segments,
                   int causal, int64_t window, double scale, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    *out = new Tensor(attend(*q, *k, *v, starts, segments, causal != 0, window, scale));
  });
}

int souk_embed_norm(const Tensor* ids, const Tensor* positions, const Tensor* word, const Tensor* position,
                    const Tensor* type, const Tensor* weight, const Tensor* bias, double eps, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const int64_t rows = ids->size(0), n = word->size(1), words = word->size(0), places = position->size(0);
    const auto *id = ids->const_data_ptr<int64_t>(), *place = positions->const_data_ptr<int64_t>();
    for (int64_t r = 0; r < rows; r++) {
      TORCH_CHECK(id[r] >= 0 && id[r] < words, "token id ", id[r], " is outside the vocabulary of ", words);
      TORCH_CHECK(place[r] >= 0 && place[r] < places, "position ", place[r], " is outside the table of ", places);
    }
    Tensor result = at::empty({rows, n}, word->options());
    auto* to = result.mutable_data_ptr<float>();
    const auto *w = word->const_data_ptr<float>(), *p = position->const_data_ptr<float>();
    const float* t = type ? type->const_data_ptr<float>() : nullptr;
    const Norm norm{weight->const_data_ptr<float>(), bias->const_data_ptr<float>(), static_cast<float>(eps)};
    const Kernels& table = kernels();
    for_rows(rows, n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) table.embed_norm(to + r * n, w + id[r] * n, p + place[r] * n, t, n, norm);
    });
    *out = new Tensor(result);
  });
}

int souk_segment_mean(const Tensor* x, const int64_t* starts, const int64_t* skip, int64_t segments, Tensor** out) {
  return no_throw([&] {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const int64_t n = x->size(1);
    Tensor result = at::empty({segments, n}, x->options());
    auto* to = result.mutable_data_ptr<float>();
    const auto* from = x->const_data_ptr<float>();
    const Kernels& table = kernels();
    at::parallel_for(0, segments, 16, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; s++)
        table.mean(to + s * n, from + (starts[s] + skip[s]) * n, starts[s + 1] - starts[s] - skip[s], n);
    });
    *out = new Tensor(result);
  });
}
}
