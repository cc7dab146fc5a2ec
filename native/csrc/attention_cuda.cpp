// Attention within the texts of a packed batch on a GPU, by libtorch's kernels for sequences of different lengths:
// FlashAttention in 16 bits, the memory-efficient kernel in f32. libtorch records the gradients.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "guard.h"

using at::Tensor;
using souk::no_throw;

extern "C" {

struct SoukGpuTexts {
  const Tensor* starts;  // i32, on the GPU
  int64_t longest;
  int64_t window;  // 0: none
  int32_t causal;
  double scale, dropout;
};
}

namespace {

Tensor flash(const Tensor& q, const Tensor& k, const Tensor& v, const SoukGpuTexts& texts) {
  std::optional<int64_t> before, after;
  if (texts.window > 0) {
    before = texts.window - 1;
    after = texts.causal ? 0 : texts.window - 1;
  }
  return std::get<0>(at::_flash_attention_forward(q, k, v, *texts.starts, *texts.starts, texts.longest, texts.longest,
                                                  texts.dropout, texts.causal != 0, /*return_debug_mask=*/false,
                                                  texts.scale, before, after));
}

// The kernel knows no windows and wants as many heads of keys and values as of queries.
Tensor memory_efficient(const Tensor& q, const Tensor& k, const Tensor& v, const SoukGpuTexts& texts) {
  TORCH_CHECK(texts.window == 0, "attention in f32 on a GPU has no window");
  const int64_t copies = q.size(1) / k.size(1);
  const auto keys = [&](const Tensor& x) { return (copies > 1 ? x.repeat_interleave(copies, 1) : x).unsqueeze(0); };
  const bool trains = at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad());
  constexpr int64_t all = 0, causal = 1;
  const auto out = at::_efficient_attention_forward(q.unsqueeze(0), keys(k), keys(v), {}, *texts.starts, *texts.starts,
                                                    texts.longest, texts.longest, texts.dropout,
                                                    texts.causal ? causal : all, trains, texts.scale);
  return std::get<0>(out).squeeze(0);
}

}  // namespace

extern "C" {

int souk_gpu_attention(const Tensor* q, const Tensor* k, const Tensor* v, const SoukGpuTexts* texts, Tensor** out) {
  return no_throw([&] {
    const auto kernel = q->scalar_type() == at::kFloat ? memory_efficient : flash;
    *out = new Tensor(kernel(*q, *k, *v, *texts).flatten(1));
  });
}
}
