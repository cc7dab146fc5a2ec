// torch's ProcessGroupNCCL in a separate library, because it needs libtorch_cuda, which the program loads only on machines with
// a GPU. Compiled by `scripts/nccl.sh`; c10d.cpp opens it by name.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

#include "souk_nccl.h"

// Exceptions cross this boundary: both sides use the same C++ runtime.
void souk_nccl_open(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
                    c10::intrusive_ptr<c10d::Backend>* out) {
  // calls block until done or timed out and then throw; by default, a watchdog thread would end the process
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 0);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  *out = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}
