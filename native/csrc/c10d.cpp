// torch's own collectives: a TCPStore, where processes find each other, and over it a ProcessGroupGloo, and a ProcessGroupNCCL
// for tensors on CUDA where one was joined. Every call waits until it is done, has failed, or its time is over. What is checked by the caller: tensors are dense and contiguous.
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
using souk::guarded;
using std::chrono::milliseconds;

struct SoukStore {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

struct SoukGroup {
  c10::intrusive_ptr<c10d::Backend> gloo;
  int64_t size;
  c10::intrusive_ptr<c10d::Backend> nccl;  // null where it was not joined

  c10d::Backend* of(const Tensor& x) const { return nccl && x.is_cuda() ? nccl.get() : gloo.get(); }
};

namespace {

thread_local std::vector<uint8_t> answer;

// Of the calling thread, until its next question to a store.
void give(std::vector<uint8_t> value, const uint8_t** data, int64_t* length) {
  answer = std::move(value);
  *data = answer.data();
  *length = static_cast<int64_t>(answer.size());
}

// c10d logs each failure with its C++ frames, and then throws it. The exception is enough, unless someone asks for more.
void quieten() {
  if (!std::getenv("TORCH_CPP_LOG_LEVEL")) FLAGS_caffe2_log_level = 3;  // fatal
}

}  // namespace

extern "C" {

// How a group is made; at most one of `interface` and `address` is not null, and says what the others connect to.
struct SoukGroupOptions {
  const char* prefix;  // of the group's keys in the store
  int32_t rank, size;
  const char* interface;
  const char* address;
  int64_t timeout_ms;
};

int souk_store_open(const char* address, uint16_t port, int32_t serve, int64_t timeout_ms, SoukStore** out) {
  return guarded([&] {
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
  guarded([&] { delete store; });
}

int souk_store_set(const SoukStore* store, const char* key, const uint8_t* data, int64_t length) {
  return guarded([&] { store->store->set(key, std::vector<uint8_t>(data, data + length)); });
}

// Gives the value that holds afterwards: another's, where the key was set before.
int souk_store_claim(const SoukStore* store, const char* key, const uint8_t* data, int64_t length, const uint8_t** found,
                     int64_t* found_length) {
  return guarded([&] {
    give(store->store->compareSet(key, std::vector<uint8_t>(), std::vector<uint8_t>(data, data + length)), found,
         found_length);
  });
}

// A length of -1 where there is no such key.
int souk_store_get(const SoukStore* store, const char* key, const uint8_t** found, int64_t* found_length) {
  return guarded([&] {
    *found_length = -1;
    if (store->store->check({key})) give(store->store->get(key), found, found_length);
  });
}

int souk_group_open(const SoukStore* store, const SoukGroupOptions* options, SoukGroup** out) {
  return guarded([&] {
    using c10d::ProcessGroupGloo;
    const auto gloo = ProcessGroupGloo::Options::create(milliseconds(options->timeout_ms));
    gloo->devices.push_back(options->interface ? ProcessGroupGloo::createDeviceForInterface(options->interface)
                            : options->address ? ProcessGroupGloo::createDeviceForHostname(options->address)
                                               : ProcessGroupGloo::createDefaultDevice());
    const auto keys = c10::make_intrusive<c10d::PrefixStore>(options->prefix, store->store);
    *out = new SoukGroup{c10::make_intrusive<ProcessGroupGloo>(keys, options->rank, options->size, gloo), options->size, {}};
  });
}

// From then on tensors on CUDA go through NCCL; libtorch_cuda must be loaded.
int souk_group_join_nccl(SoukGroup* group, const SoukStore* store, const SoukGroupOptions* options, const char* library) {
  return guarded([&] {
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
  guarded([&] { delete group; });
}

// [size, ...], by rank.
int souk_group_all_gather(const SoukGroup* group, const Tensor* x, Tensor** out) {
  return guarded([&] {
    std::vector<int64_t> shape = x->sizes().vec();
    shape.insert(shape.begin(), group->size);
    Tensor from = x->detach().view({-1});
    Tensor to = at::empty({group->size * from.numel()}, from.options());
    group->of(from)->_allgather_base(to, from)->wait();
    *out = new Tensor(to.view(shape));
  });
}

int souk_group_all_reduce(const SoukGroup* group, const Tensor* x) {
  return guarded([&] {
    std::vector<Tensor> tensors{x->detach()};
    group->of(tensors[0])->allreduce(tensors)->wait();  // the sum, unless one asks for something else
  });
}

int souk_group_reduce_scatter(const SoukGroup* group, const Tensor* out, const Tensor* x) {
  return guarded([&] {
    Tensor to = out->detach(), from = x->detach();
    group->of(from)->_reduce_scatter_base(to, from)->wait();
  });
}

int souk_group_broadcast(const SoukGroup* group, const Tensor* x, int32_t root) {
  return guarded([&] {
    std::vector<Tensor> tensors{x->detach()};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    group->of(tensors[0])->broadcast(tensors, options)->wait();
  });
}

int souk_group_barrier(const SoukGroup* group) {
  return guarded([&] { group->gloo->barrier()->wait(); });
}
}
