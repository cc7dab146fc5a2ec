// torch's ProcessGroupNCCL, in a library of its own: it needs libtorch_cuda, which the program loads only where there is a
// GPU. `scripts/nccl.sh` compiles it; c10d.cpp opens it by name.
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <cstdlib>

#include "souk_nccl.h"

// Errors are thrown: the caller's runtime is the same.
void souk_nccl_open(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
                    c10::intrusive_ptr<c10d::Backend>* out) {
  // a call waits until it is done or its time is over, and then throws, instead of ending the process from a thread
  setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 0);
  const auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  *out = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}
