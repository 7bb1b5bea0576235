// c10d's Reducer: the gradients of a bucket are reduced as soon as backward has made them all.
#include <ATen/core/grad_mode.h>

#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <type_traits>

#include "hotswap/base/error.h"
#include "hotswap/training/ranks/ranks_impl.h"

namespace hotswap {
namespace {

using Buckets = std::vector<std::vector<size_t>>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

constexpr size_t kMebibyte = size_t{1} << 20;

// Up to torch 2.13 with these arguments; 2.14 takes one more, with a default value.
template <typename Reducer>
std::unique_ptr<Reducer> reducer_of(const Group& group, const TrainedTensors& trained, Buckets buckets,
                                    const GradientSyncOptions& options) {
  std::unordered_map<size_t, std::string> names;
  for (size_t i = 0; i < trained.names.size(); ++i) names[i] = trained.names[i];
  const std::vector<bool> sparse(trained.tensors.size(), false);
  const auto cap = static_cast<int64_t>(options.bucket_mib * kMebibyte);
  const auto first = static_cast<int64_t>(c10d::kDefaultFirstBucketBytes);
  constexpr bool kViews = true;  // gradients are views of the buckets: no copy of them
  const auto make = [&](auto... more) {
    return std::make_unique<Reducer>(trained.tensors, std::move(buckets), group, sparse, cap,
                                     options.find_unused_parameters, kViews, names, first, more...);
  };
  using Caps = std::vector<int64_t>;
  using Names = std::unordered_map<size_t, std::string>;
  if constexpr (std::is_constructible_v<Reducer, std::vector<Tensor>, Buckets, Group, std::vector<bool>, int64_t, bool,
                                        bool, Names, int64_t, bool, bool, Caps>) {
    return make(/*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, Caps{});
  } else if constexpr (std::is_constructible_v<Reducer, std::vector<Tensor>, Buckets, Group, std::vector<bool>, int64_t,
                                               bool, bool, Names, int64_t, bool, bool>) {
    return make(false, false);  // before the list of sizes
  } else {
    return make(false, false, Caps{}, Caps{});
  }
}

class ReducerSync final : public GradientSync {
 public:
  ReducerSync(const Group& group, const TrainedTensors& trained, const GradientSyncOptions& options,
              std::function<void()> on_reduce)
      : trained_(trained), find_unused_(options.find_unused_parameters), on_reduce_(std::move(on_reduce)) {
    const size_t cap = static_cast<size_t>(options.bucket_mib) * kMebibyte;
    const std::vector<size_t> sizes =
        find_unused_ ? std::vector<size_t>{cap} : std::vector<size_t>{c10d::kDefaultFirstBucketBytes, cap};
    Buckets buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(trained.tensors, sizes));
    std::reverse(buckets.begin(), buckets.end());  // about the order in which backward makes gradients
    reducer_ = reducer_of<c10d::Reducer>(group, trained, std::move(buckets), options);
  }

  void before_forward(bool sync) override {
    if (!sync) return;
    reducer_->prepare_for_forward();
    reducer_->rebuild_buckets();  // once, in the order that the first backward had
  }

  void before_backward(const Tensor& loss, bool sync) override {
    if (!sync) return;
    on_reduce_();
    reducer_->prepare_for_backward(find_unused_ ? std::vector<Tensor>{loss} : std::vector<Tensor>{});
  }

  void after_backward(bool sync) override {
    if (!sync || find_unused_) return;
    std::vector<std::string> without;
    for (size_t i = 0; i < trained_.tensors.size(); ++i) {
      if (!trained_.tensors[i].grad().defined()) without.push_back(trained_.names[i]);
    }
    if (without.empty()) return;
    const std::string others = without.size() > 3 ? cat(" and ", without.size() - 3, " more") : "";
    without.resize(std::min<size_t>(without.size(), 3));
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "a gradient of every parameter that is trained, which the ranks add up",
                 .got = cat("none of ", join(without), others),
                 .next = "set ddp_find_unused_parameters, or freeze them (requires_grad)"});
  }

 private:
  TrainedTensors trained_;
  bool find_unused_;
  std::function<void()> on_reduce_;
  std::unique_ptr<c10d::Reducer> reducer_;
};

}  // namespace

std::unique_ptr<GradientSync> make_reducer(const Group& group, const TrainedTensors& trained,
                                           const GradientSyncOptions& options, std::function<void()> on_reduce) {
  c10d::verify_params_across_processes(group, trained.tensors, std::nullopt);
  return std::make_unique<ReducerSync>(group, trained, options, std::move(on_reduce));
}

void check_same_tensors(const Group& group, const std::vector<Tensor>& tensors) {
  if (!tensors.empty()) c10d::verify_params_across_processes(group, tensors, std::nullopt);
}

void broadcast_tensors(const Group& group, int from, const std::vector<Tensor>& tensors) {
  if (tensors.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<Tensor> plain;
  for (const Tensor& tensor : tensors) plain.push_back(tensor.detach());
  c10d::broadcast_coalesced(group, plain, 25 * kMebibyte, from);  // two copies of that size at once
}

}  // namespace hotswap
