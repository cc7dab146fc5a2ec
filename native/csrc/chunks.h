// How the functions that Rust calls choose kernels and split rows over threads.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>

#include "kernels.h"

namespace souk {

// The kernels of this processor, or those that a test has chosen for this thread: call it on the caller's thread, because
// workers get the table passed.
const Kernels& kernels();
// Whether products of int8 and bf16 use AMX tiles; everything else is then as with AVX-512.
bool uses_tiles();
// The int8 products of this processor, chosen as above.
const Int8Kernels& int8_kernels();
// The bf16 products of this processor; null without any.
const Bf16Kernels* bf16_kernels();

// Rows in a chunk: enough to use a panel often, and few enough that the rows between two layers stay in the cache.
constexpr int64_t kMostRows = 192, kMostRowsFused = 96, kLeastRows = 32, kRowStep = 12, kTileStep = 16;

// Number of chunks, the same for each thread; one if there are too few rows to give each thread kLeastRows.
inline int64_t num_chunks(int64_t rows, int64_t threads, int64_t most) {
  if (threads > 1 && rows < kLeastRows * threads) return 1;
  return (rows + threads * most - 1) / (threads * most) * threads;
}

// Calls f(first, rows) for each chunk. Chunks have equal numbers of steps of `step` rows, give or take one. Threads draw them
// from a counter, because other work can slow a thread down.
template <class F>
void for_chunks(int64_t rows, int64_t most, int64_t step, const F& f) {
  if (rows == 0) return;
  const int64_t threads = at::in_parallel_region() ? 1 : at::get_num_threads(), chunks = num_chunks(rows, threads, most);
  const int64_t steps = (rows + step - 1) / step;
  const auto start = [&](int64_t i) { return std::min(rows, steps * i / chunks * step); };
  const auto chunk = [&](int64_t i) {
    if (start(i) < start(i + 1)) f(start(i), start(i + 1) - start(i));
  };
  if (chunks == 1) return chunk(0);
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min(threads, chunks), 1, [&](int64_t, int64_t) {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < chunks;) chunk(i);
  });
}

// Row kernels of a chunk that is the whole input may run in parallel; inside a worker this runs serially.
template <class F>
void for_rows(int64_t rows, int64_t width, const F& f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 32768 / std::max<int64_t>(width, 1)), f);
}

}  // namespace souk
