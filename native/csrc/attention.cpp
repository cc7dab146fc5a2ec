// Attention within the segments of a packed batch, and its gradients.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <vector>

#include "chunks.h"
#include "guard.h"

using at::Tensor;
using souk::no_throw;

extern "C" {

struct SoukSegments {
  const int64_t* starts;
  int64_t segments, window;
  int32_t causal;
  double scale;
};
}

namespace souk {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// Minimum multiplications per thread.
constexpr int64_t kAttentionWork = 1 << 19;

struct Segments {
  std::vector<int64_t> starts;
  int64_t window;
  bool causal;
  float scale;

  int64_t count() const { return static_cast<int64_t>(starts.size()) - 1; }
};

// Calls f(unit, scratch) for each unit; threads draw them from a counter, because segments differ too much for a static split.
template <class F>
void for_units(int64_t units, int64_t take, int64_t work, int64_t floats, const F& f) {
  const int64_t worth = std::min<int64_t>(units, 1 + work / kAttentionWork);
  const int64_t threads = std::max<int64_t>(1, std::min<int64_t>(at::get_num_threads(), worth));
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const Tensor scratch = at::empty({floats}, at::kFloat);
    for (int64_t at; (at = next.fetch_add(take, std::memory_order_relaxed)) < units;)
      for (int64_t unit = at; unit < std::min(units, at + take); unit++) f(unit, scratch.mutable_data_ptr<float>());
  });
}

// All heads of a block at once read whole rows, which suits the prefetcher; with few blocks the split is finer.
int64_t heads_at_once(int64_t blocks, int64_t heads) { return blocks >= 8 * at::get_num_threads() ? heads : 1; }

// `logs` [rows, heads] is for the gradients; undefined without them.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, const Segments& segments, const Tensor& logs) {
  const int64_t rows = q.size(0), heads = q.size(1), dim = q.size(2), group = heads / k.size(1);
  const Tensor out = at::empty({rows, heads * dim}, q.options().requires_grad(false));
  struct Block {
    int64_t start, length, first, last;
  };
  std::vector<Block> blocks;
  int64_t work = 0;
  for (int64_t s = 0; s < segments.count(); s++) {
    const int64_t start = segments.starts[s], length = segments.starts[s + 1] - start;
    work += length * length * heads * dim;
    for (int64_t first = 0; first < length; first += kQueryRows)
      blocks.push_back({start, length, first, std::min(length, first + kQueryRows)});
  }
  const Kernels& table = kernels();
  const int64_t num = static_cast<int64_t>(blocks.size());
  const auto at = [](const Tensor& x, int64_t token, int64_t head) {
    return x.const_data_ptr<float>() + token * x.stride(0) + head * x.stride(1);
  };
  for_units(num * heads, heads_at_once(num, heads), work, attention_scratch(dim), [&](int64_t unit, float* scratch) {
    const Block& b = blocks[unit / heads];
    const int64_t head = unit % heads, shared = head / group;
    table.attention({at(q, b.start, head), at(k, b.start, shared), at(v, b.start, shared),
                     out.mutable_data_ptr<float>() + (b.start * heads + head) * dim, q.stride(0), k.stride(0), v.stride(0),
                     heads * dim, b.length, b.first, b.last, dim, segments.window, segments.causal, segments.scale, scratch,
                     logs.defined() ? logs.mutable_data_ptr<float>() + b.start * heads + head : nullptr, heads});
  });
  return out;
}

// Columns of a projection that holds queries, keys and values side by side, as [rows, heads, dim].
std::vector<Tensor> split_heads(const Tensor& qkv, int64_t heads, int64_t shared) {
  const int64_t dim = qkv.size(1) / (heads + 2 * shared);
  const auto columns = [&](int64_t first, int64_t count) {
    return qkv.narrow(1, first * dim, count * dim).view({qkv.size(0), count, dim});
  };
  return {columns(0, heads), columns(heads, shared), columns(heads + shared, shared)};
}

struct TrainedAttention : torch::autograd::Node {
  Segments segments;
  int64_t heads = 0, shared = 0;
  std::vector<SavedVariable> inputs;  // the projection, or queries, keys and values
  SavedVariable out, logs;

  std::string name() const override { return "SoukTrainedAttention"; }

  void release_variables() override {
    for (SavedVariable& input : inputs) input.reset_data();
    out.reset_data();
    logs.reset_data();
  }

  variable_list apply(variable_list&& gradients) override {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    variable_list to(num_outputs());
    if (!gradients[0].defined()) return to;
    std::vector<Tensor> given;
    for (SavedVariable& input : inputs) given.push_back(input.unpack());
    for (size_t i = 0; i < given.size(); i++) to[i] = at::empty(given[i].sizes(), given[i].options().requires_grad(false));
    const bool joined = given.size() == 1;
    backward(joined ? split_heads(given[0], heads, shared) : given, joined ? split_heads(to[0], heads, shared) : to,
             gradients[0].contiguous());
    return to;
  }

 private:
  void backward(const std::vector<Tensor>& qkv, const std::vector<Tensor>& d_qkv, const Tensor& gradient) {
    const Tensor result = out.unpack(shared_from_this()), sums = logs.unpack();
    const Tensor &q = qkv[0], &k = qkv[1], &v = qkv[2], &dq = d_qkv[0], &dk = d_qkv[1], &dv = d_qkv[2];
    const int64_t dim = q.size(2), group = heads / shared, num = segments.count();
    int64_t work = 0;
    for (int64_t s = 0; s < num; s++) {
      const int64_t length = segments.starts[s + 1] - segments.starts[s];
      work += 5 * length * length * heads * dim / 2;
    }
    const Kernels& table = kernels();
    const auto at = [](const Tensor& x, int64_t token, int64_t head) {
      return x.const_data_ptr<float>() + token * x.stride(0) + head * x.stride(1);
    };
    const auto to = [&](const Tensor& x, int64_t token, int64_t head) { return const_cast<float*>(at(x, token, head)); };
    const int64_t floats = attention_gradient_scratch(dim);
    for_units(num * shared, heads_at_once(num, shared), work, floats, [&](int64_t unit, float* scratch) {
      const int64_t start = segments.starts[unit / shared], length = segments.starts[unit / shared + 1] - start;
      const int64_t key_head = unit % shared, head = key_head * group, offset = (start * heads + head) * dim;
      table.attention_backward({at(q, start, head), at(k, start, key_head), at(v, start, key_head),
                                result.const_data_ptr<float>() + offset, gradient.const_data_ptr<float>() + offset,
                                sums.const_data_ptr<float>() + start * heads + head, to(dq, start, head),
                                to(dk, start, key_head), to(dv, start, key_head), q.stride(0), k.stride(0), v.stride(0),
                                heads * dim, heads, dq.stride(0), dk.stride(0), dv.stride(0), length, group, dim,
                                segments.window, segments.causal, segments.scale, scratch});
    });
  }
};

// `inputs` is a projection of queries, keys and values, or these three; `shared` is the number of heads of keys and values.
Tensor train_attention(const variable_list& inputs, int64_t heads, int64_t shared, const Segments& segments) {
  const bool records = torch::autograd::compute_requires_grad(at::TensorList(inputs));
  Tensor result, logs;
  {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const auto qkv = inputs.size() == 1 ? split_heads(inputs[0], heads, shared) : inputs;
    if (records) logs = at::empty({qkv[0].size(0), heads}, qkv[0].options().requires_grad(false));
    result = attend(qkv[0], qkv[1], qkv[2], segments, logs);
  }
  if (!records) return result;
  auto node = std::shared_ptr<TrainedAttention>(new TrainedAttention(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(at::TensorList(inputs)));
  node->segments = segments;
  node->heads = heads;
  node->shared = shared;
  for (const Tensor& input : inputs) node->inputs.emplace_back(input, false);
  node->logs = SavedVariable(logs, false);
  torch::autograd::set_history(result, node);
  node->out = SavedVariable(result, true);
  return result;
}

}  // namespace
}  // namespace souk

extern "C" {

// `k` and `v` are null if `q` is a projection that holds all three side by side, of `heads` query heads and `shared` others.
int souk_attention(const Tensor* q, const Tensor* k, const Tensor* v, int64_t heads, int64_t shared,
                   const SoukSegments* segments, Tensor** out) {
  return no_throw([&] {
    const souk::Segments packed{{segments->starts, segments->starts + segments->segments + 1}, segments->window,
                                segments->causal != 0, static_cast<float>(segments->scale)};
    souk::variable_list inputs{*q};
    if (k) inputs.insert(inputs.end(), {*k, *v});
    *out = new Tensor(souk::train_attention(inputs, heads, shared, packed));
  });
}
}
