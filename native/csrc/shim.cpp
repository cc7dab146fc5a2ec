// Functions called from Rust: the choice of kernels, the properties of tensors, and embeddings. Every function that Rust
// calls, here and in the other files, catches all C++ exceptions and reports them through souk_last_error. Callers check
// shapes, types and layouts.
#include <ATen/ATen.h>
#include <ATen/Version.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <string>

#include "chunks.h"
#include "guard.h"

namespace {

using at::Tensor;
using souk::for_rows;
using souk::Kernels;
using souk::last_error;
using souk::no_throw;
using souk::Norm;

thread_local int forced_isa = -1;

// ---- which kernels ----

// Whether the processor has AMX for int8 and bf16, and the kernel lets this process use it. It must be asked first, because tiles
// make the saved state of a thread larger.
bool has_amx() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool has = [] {
    constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTile | kInt8;
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kAll) == kAll &&
           syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return has;
#else
  return false;
#endif
}

bool isa_supported(int isa) {
  if (isa == 0) return true;
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (isa == 1) return avx2;
  if (isa == 2)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (isa == 3) return isa_supported(2) && __builtin_cpu_supports("avx512vnni");
  if (isa == 4) return isa_supported(3) && __builtin_cpu_supports("avx512bf16") && has_amx();
#endif
  return false;
}

const Kernels& table(int isa) {
#if defined(__x86_64__)
  if (isa >= 2) return souk::avx512::kernels;
  if (isa == 1) return souk::avx2::kernels;
#endif
  (void)isa;
  return souk::baseline::kernels;
}

}  // namespace

const Kernels& souk::kernels() {
  static const int best = isa_supported(2) ? 2 : isa_supported(1) ? 1 : 0;
  return table(forced_isa >= 0 ? forced_isa : best);
}

bool souk::uses_tiles() {
  static const bool has = isa_supported(4);
  return has && (forced_isa < 0 || forced_isa == 4);
}

const souk::Int8Kernels& souk::int8_kernels() {
#if defined(__x86_64__)
  if (uses_tiles()) return amx_int8::int8;
  const auto allowed = [](int isa) { return isa_supported(isa) && (forced_isa < 0 || forced_isa >= isa); };
  if (allowed(3)) return avx512_vnni::int8;
  if (allowed(1) && forced_isa != 2 && __builtin_cpu_supports("avxvnni")) return avx_vnni::int8;
  if (allowed(2)) return avx512::int8;
  if (allowed(1)) return avx2::int8;
#endif
  return baseline::int8;
}

const souk::Bf16Kernels* souk::bf16_kernels() {
#if defined(__x86_64__)
  static const bool has = isa_supported(2) && __builtin_cpu_supports("avx512bf16");
  if (uses_tiles()) return &amx_bf16::kernels;
  if (has) return &avx512_bf16::kernels;
#endif
  return nullptr;
}

extern "C" {

// Properties of a tensor for the checks in Rust.
struct SoukLayout {
  int32_t dense;  // 1 when defined, strided, on the CPU, and not lazily negated
  int32_t kind;   // at::ScalarType
  int64_t dims;
  int64_t sizes[4];
  int64_t strides[4];
};
}

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

int souk_supports_bf16() { return souk::bf16_kernels() != nullptr; }

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
    const Kernels& table = souk::kernels();
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
    const Kernels& table = souk::kernels();
    at::parallel_for(0, segments, 16, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; s++)
        table.mean(to + s * n, from + (starts[s] + skip[s]) * n, starts[s + 1] - starts[s] - skip[s], n);
    });
    *out = new Tensor(result);
  });
}
}
