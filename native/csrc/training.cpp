// Training features of libtorch that `tch` does not wrap: the fused AdamW step and the autocast switches.
#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>

#include <vector>

#include "guard.h"

using at::Tensor;
using souk::no_throw;

extern "C" {

struct SoukAdamW {
  const Tensor* const* parameters;
  const Tensor* const* gradients;
  const Tensor* const* first;
  const Tensor* const* second;
  const Tensor* steps;  // f32, one for each parameter, on the parameters' device
  int64_t count;
  double rate, beta1, beta2, eps, weight_decay;
};

// Saved autocast state of this thread.
struct SoukAutocast {
  int32_t device;  // at::DeviceType
  int32_t enabled, cache, kind;
};

int souk_fused_adamw(const SoukAdamW* adamw) {
  return no_throw([&] {
    const at::NoGradGuard no_grad;
    const auto list = [&](const Tensor* const* from) {
      std::vector<Tensor> tensors;
      for (int64_t i = 0; i < adamw->count; i++) tensors.push_back(*from[i]);
      return tensors;
    };
    at::_fused_adamw_(list(adamw->parameters), list(adamw->gradients), list(adamw->first), list(adamw->second), {},
                      adamw->steps->unbind(), adamw->rate, adamw->beta1, adamw->beta2, adamw->weight_decay, adamw->eps,
                      /*amsgrad=*/false, /*maximize=*/false);
    // libtorch does not count this change; packed copies of the weights are made again when it is counted
    for (int64_t i = 0; i < adamw->count; i++) adamw->parameters[i]->unsafeGetTensorImpl()->bump_version();
  });
}

int souk_autocast_start(int32_t cuda, SoukAutocast* before) {
  return no_throw([&] {
    const at::DeviceType device = cuda ? at::kCUDA : at::kCPU;
    *before = {static_cast<int32_t>(device), at::autocast::is_autocast_enabled(device),
               at::autocast::is_autocast_cache_enabled(),
               static_cast<int32_t>(at::autocast::get_autocast_dtype(device))};
    at::autocast::set_autocast_dtype(device, at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_enabled(device, true);
    at::autocast::increment_nesting();
  });
}

void souk_autocast_end(const SoukAutocast* before) {
  no_throw([&] {
    const auto device = static_cast<at::DeviceType>(before->device);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device, before->enabled != 0);
    at::autocast::set_autocast_cache_enabled(before->cache != 0);
    at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(before->kind));
  });
}
}
