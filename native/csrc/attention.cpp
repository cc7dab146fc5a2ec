// Attention within the segments of a packed batch, and its gradients.
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <atomic>
#include <vector>

#include "chunks.h"
#include "draw.h"
#include "guard.h"

using at::Tensor;
using souk::no_throw;

extern "C" {

struct SoukSegments {
  const int64_t* starts;
  int64_t segments, window;
  int32_t causal;
  double scale;
  const Tensor* bias;  // [heads, 2 n - 1], by key position minus query position from 1 - n on; or null
  double dropout;
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
  Dropout dropout;

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

// The bias of distance 0 of a head; null without a bias.
const float* bias_of(const Tensor& bias, int64_t head) {
  return bias.defined() ? bias.const_data_ptr<float>() + head * bias.size(1) + bias.size(1) / 2 : nullptr;
}

// `bias` may be undefined. `logs` [rows, heads] is for the gradients; undefined without them.
Tensor attend(const variable_list& qkv, const Tensor& bias, const Segments& segments, const Tensor& logs) {
  const Tensor &q = qkv[0], &k = qkv[1], &v = qkv[2];
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
                     heads * dim, b.length, b.first, b.last, dim, segments.window, segments.causal, segments.scale,
                     bias_of(bias, head), scratch,
                     logs.defined() ? logs.mutable_data_ptr<float>() + b.start * heads + head : nullptr, heads,
                     segments.dropout, b.start * heads + head});
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
  bool has_bias = false;
  std::vector<SavedVariable> inputs;  // the projection, or queries, keys and values; then the bias, if there is one
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
    const bool joined = given.size() - has_bias == 1;
    Bias bias;
    if (has_bias) bias = {given.back(), segment_sums()};
    backward(joined ? split_heads(given[0], heads, shared) : given, joined ? split_heads(to[0], heads, shared) : to, bias,
             gradients[0].contiguous());
    if (has_bias) bias.add_to(to.back(), segments);
    return to;
  }

 private:
  // A bias, and its gradient in each segment: added up in the order of the segments, it has the same bits for any number of
  // threads.
  struct Bias {
    Tensor table, sums;  // sums: of each segment [heads, 2 * length]

    void add_to(Tensor& gradient, const Segments& segments) const {
      gradient.zero_();
      const int64_t heads = table.size(0), width = table.size(1);
      for (int64_t s = 0; s < segments.count(); s++) {
        const int64_t start = segments.starts[s], length = segments.starts[s + 1] - start;
        if (length == 0) continue;
        const Tensor own = sums.narrow(0, 2 * start * heads, 2 * length * heads).view({heads, 2 * length});
        gradient.narrow(1, width / 2 - length + 1, 2 * length - 1).add_(own.narrow(1, 1, 2 * length - 1));
      }
    }
  };

  Tensor segment_sums() const { return at::zeros({2 * segments.starts.back() * heads}, at::kFloat); }

  void backward(const std::vector<Tensor>& qkv, const std::vector<Tensor>& d_qkv, const Bias& bias, const Tensor& gradient) {
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
      float* d_bias = bias.sums.defined() ? bias.sums.mutable_data_ptr<float>() + 2 * (start * heads + head * length) + length
                                          : nullptr;
      table.attention_backward({at(q, start, head), at(k, start, key_head), at(v, start, key_head),
                                result.const_data_ptr<float>() + offset, gradient.const_data_ptr<float>() + offset,
                                sums.const_data_ptr<float>() + start * heads + head, to(dq, start, head),
                                to(dk, start, key_head), to(dv, start, key_head), q.stride(0), k.stride(0), v.stride(0),
                                heads * dim, heads, dq.stride(0), dk.stride(0), dv.stride(0), length, group, dim,
                                segments.window, segments.causal, segments.scale, bias_of(bias.table, head), d_bias,
                                bias.table.defined() ? bias.table.size(1) : 0, 2 * length, scratch, segments.dropout,
                                start * heads + head});
    });
  }
};

// `inputs` is a projection of queries, keys and values, or these three, and then the bias, if there is one; `shared` is the number
// of heads of keys and values.
Tensor train_attention(const variable_list& inputs, int64_t heads, int64_t shared, const Segments& segments) {
  const bool has_bias = inputs.size() % 2 == 0;
  const bool records = torch::autograd::compute_requires_grad(at::TensorList(inputs));
  Tensor result, logs;
  {
    const at::AutoDispatchBelowADInplaceOrView no_grad;
    const auto qkv = inputs.size() - has_bias == 1 ? split_heads(inputs[0], heads, shared) : inputs;
    if (records) logs = at::empty({qkv[0].size(0), heads}, qkv[0].options().requires_grad(false));
    result = attend(qkv, has_bias ? inputs.back() : Tensor(), segments, logs);
  }
  if (!records) return result;
  auto node = std::shared_ptr<TrainedAttention>(new TrainedAttention(), torch::autograd::deleteNode);
  node->set_next_edges(torch::autograd::collect_next_edges(at::TensorList(inputs)));
  node->segments = segments;
  node->heads = heads;
  node->shared = shared;
  node->has_bias = has_bias;
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
                                segments->causal != 0, static_cast<float>(segments->scale),
                                souk::draw_dropout(segments->dropout)};
    souk::variable_list inputs{*q};
    if (k) inputs.insert(inputs.end(), {*k, *v});
    if (segments->bias) inputs.push_back(*segments->bias);
    *out = new Tensor(souk::train_attention(inputs, heads, shared, packed));
  });
}
}
