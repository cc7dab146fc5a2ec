// How the functions that Rust calls choose kernels and split rows over threads.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>

#include "kernels.h"

namespace souk {

// The kernels of this processor, or those that a test has chosen for this thread: call it on the caller's thread, because
// workers get the table passed.
const Kernels& kernels();

// Rows in a chunk: enough to use a panel often, and few enough that the rows between two layers stay in the cache.
constexpr int64_t kMostRows = 192, kMostRowsFused = 96, kLeastRows = 32, kRowStep = 12;

// A multiple of `step`; all rows if there are too few to give each thread kLeastRows.
inline int64_t rows_per_chunk(int64_t rows, int64_t threads, int64_t most, int64_t step) {
  if (threads > 1 && rows < kLeastRows * threads) return round_up(rows, step);
  const int64_t rounds = (rows + threads * most - 1) / (threads * most);
  return round_up((rows + threads * rounds - 1) / (threads * rounds), step);
}

// Calls f(first, rows) for each chunk; oneDNN uses one thread if chunks run in parallel.
template <class F>
void for_chunks(int64_t rows, int64_t most, int64_t step, const F& f) {
  if (rows == 0) return;
  const int64_t size = rows_per_chunk(rows, at::in_parallel_region() ? 1 : at::get_num_threads(), most, step);
  const int64_t chunks = (rows + size - 1) / size;
  const auto chunk = [&](int64_t i) { f(i * size, std::min(size, rows - i * size)); };
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

}  // namespace souk
