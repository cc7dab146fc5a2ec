// torch's collectives: a TCPStore for rendezvous, a ProcessGroupGloo on top of it, and an optional ProcessGroupNCCL for CUDA
// tensors. Every call blocks until it succeeds, fails or times out. Callers check that tensors are dense and contiguous.
#include <ATen/ATen.h>
#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "guard.h"
#include "souk_nccl.h"

using at::Tensor;
using souk::no_throw;
using std::chrono::milliseconds;

struct SoukStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

struct SoukGroup {
  c10::intrusive_ptr<c10d::Backend> gloo;
  int64_t size;
  c10::intrusive_ptr<c10d::Backend> nccl;  // null unless joined

  c10d::Backend* of(const Tensor& x) const { return nccl && x.is_cuda() ? nccl.get() : gloo.get(); }
};

namespace {

thread_local std::vector<uint8_t> answer;

// Thread-local, until the thread's next request to a store.
void give(std::vector<uint8_t> value, const uint8_t** data, int64_t* length) {
  answer = std::move(value);
  *data = answer.data();
  *length = static_cast<int64_t>(answer.size());
}

// c10d logs each failure with its C++ stack and then throws it. The exception is enough by default.
void quieten() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 3;  // fatal
}

}  // namespace

extern "C" {

// Options of a group. At most one of `interface` and `address` is set; it determines the address that others connect to.
struct SoukGroupOptions {
  const char* prefix;  // of the group's keys in the store
  int32_t rank, size;
  const char* interface;
  const char* address;
  int64_t timeout_ms;
};

int souk_store_open(const char* address, uint16_t port, int32_t serve, int64_t timeout_ms, SoukStore** out) {
  return no_throw([&] {
    quieten();
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serve != 0;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout_ms);
    *out = new SoukStore{c10::make_intrusive<c10d::TCPStore>(std::string(address), options)};
  });
}

void souk_store_free(SoukStore* store) {
  no_throw([&] { delete store; });
}

int souk_store_set(const SoukStore* store, const char* key, const uint8_t* data, int64_t length) {
  return no_throw([&] { store->store->set(key, std::vector<uint8_t>(data, data + length)); });
}

// Returns the resulting value, which is another's if the key was set before.
int souk_store_set_if_absent(const SoukStore* store, const char* key, const uint8_t* data, int64_t length, const uint8_t** found,
                     int64_t* found_length) {
  return no_throw([&] {
    give(store->store->compareSet(key, std::vector<uint8_t>(), std::vector<uint8_t>(data, data + length)), found,
         found_length);
  });
}

// Length -1 if the key does not exist.
int souk_store_get(const SoukStore* store, const char* key, const uint8_t** found, int64_t* found_length) {
  return no_throw([&] {
    *found_length = -1;
    if (store->store->check({key})) give(store->store->get(key), found, found_length);
  });
}

int souk_group_open(const SoukStore* store, const SoukGroupOptions* options, SoukGroup** out) {
  return no_throw([&] {
    using c10d::ProcessGroupGloo;
    const auto gloo = ProcessGroupGloo::Options::create(milliseconds(options->timeout_ms));
    gloo->devices.push_back(options->interface ? ProcessGroupGloo::createDeviceForInterface(options->interface)
                            : options->address ? ProcessGroupGloo::createDeviceForHostname(options->address)
                                               : ProcessGroupGloo::createDefaultDevice());
    const auto keys = c10::make_intrusive<c10d::PrefixStore>(options->prefix, store->store);
    *out = new SoukGroup{c10::make_intrusive<ProcessGroupGloo>(keys, options->rank, options->size, gloo), options->size, {}};
  });
}

// Afterwards CUDA tensors go through NCCL; libtorch_cuda must be loaded.
int souk_group_join_nccl(SoukGroup* group, const SoukStore* store, const SoukGroupOptions* options, const char* library) {
  return no_throw([&] {
    void* loaded = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    void* found = loaded ? dlsym(loaded, "souk_nccl_open") : nullptr;
    if (!found) {
      const char* why = dlerror();
      throw std::runtime_error(why ? why : "the library has no souk_nccl_open");
    }
    const auto keys = c10::make_intrusive<c10d::PrefixStore>(options->prefix, store->store);
    const auto open = reinterpret_cast<decltype(&souk_nccl_open)>(found);
    open(keys, options->rank, options->size, milliseconds(options->timeout_ms), &group->nccl);
  });
}

void souk_group_free(SoukGroup* group) {
  no_throw([&] { delete group; });
}

// Output: [size, ...], by rank.
int souk_group_all_gather(const SoukGroup* group, const Tensor* x, Tensor** out) {
  return no_throw([&] {
    std::vector<int64_t> shape = x->sizes().vec();
    shape.insert(shape.begin(), group->size);
    Tensor from = x->detach().view({-1});
    Tensor to = at::empty({group->size * from.numel()}, from.options());
    group->of(from)->_allgather_base(to, from)->wait();
    *out = new Tensor(to.view(shape));
  });
}

int souk_group_all_reduce(const SoukGroup* group, const Tensor* x) {
  return no_throw([&] {
    std::vector<Tensor> tensors{x->detach()};
    group->of(tensors[0])->allreduce(tensors)->wait();  // default: sum
  });
}

int souk_group_reduce_scatter(const SoukGroup* group, const Tensor* out, const Tensor* x) {
  return no_throw([&] {
    Tensor to = out->detach(), from = x->detach();
    group->of(from)->_reduce_scatter_base(to, from)->wait();
  });
}

int souk_group_broadcast(const SoukGroup* group, const Tensor* x, int32_t root) {
  return no_throw([&] {
    std::vector<Tensor> tensors{x->detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group->of(tensors[0])->broadcast(tensors, options)->wait();
  });
}

int souk_group_barrier(const SoukGroup* group) {
  return no_throw([&] { group->gloo->barrier()->wait(); });
}
}
