// Interface of libsouk_nccl.so for c10d.cpp.
#pragma once
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

extern "C" {
// Joins the job's NCCL group; throws.
void souk_nccl_open(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
                    c10::intrusive_ptr<c10d::Backend>* out);
}
