// Dropout whose seed comes from libtorch's generator, so that a seed that is set there decides it.
#pragma once
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <limits>
#include <mutex>

#include "kernels.h"

namespace souk {

// `share` is at least 0 and below 1; without one, nothing is drawn.
inline Dropout draw_dropout(double share) {
  if (share == 0.0) return {};
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::lock_guard<std::mutex> lock(generator.mutex());
  const uint64_t seed = generator.get<at::CPUGeneratorImpl>()->random64();
  constexpr double kHashes = 4294967296.0;
  constexpr auto kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();
  const auto limit = static_cast<int32_t>(std::min<double>(kMost, kLeast + share * kHashes));
  return {true, seed, limit, static_cast<float>(1.0 / (1.0 - share))};
}

}  // namespace souk
