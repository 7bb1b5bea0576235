#include "hotswap/training/data/bins.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

#include "hotswap/base/error.h"
#include "hotswap/base/nearest_name.h"

namespace hotswap {
namespace {

using Bins = std::vector<std::vector<int64_t>>;

constexpr size_t kMapBatch = 1000;  // examples, of datasets.Dataset.map

// Examples [first, last) of the lengths.
void pack(const std::vector<int64_t>& lengths, size_t first, size_t last, int64_t capacity, Bins& bins) {
  std::vector<int64_t> order(last - first);
  std::iota(order.begin(), order.end(), static_cast<int64_t>(first));
  const auto length = [&](int64_t example) { return lengths[static_cast<size_t>(example)]; };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length(a) > length(b); });
  std::map<int64_t, std::deque<size_t>> by_space;  // bins, the one that has had this space for longest first
  for (const int64_t example : order) {
    auto fits = by_space.lower_bound(length(example));
    int64_t space = capacity;
    size_t bin = bins.size();
    if (fits == by_space.end()) {
      bins.emplace_back();
    } else {
      space = fits->first;
      bin = fits->second.front();
      fits->second.pop_front();
      if (fits->second.empty()) by_space.erase(fits);
    }
    bins[bin].push_back(example);
    by_space[space - length(example)].push_back(bin);
  }
}

class BinDataset final : public Dataset {
 public:
  BinDataset(std::vector<Example> examples, Bins bins, int64_t capacity)
      : examples_(std::move(examples)), bins_(std::move(bins)), capacity_(capacity) {}
  int64_t size() const override { return static_cast<int64_t>(bins_.size()); }
  TrainingBatch batch(const std::vector<int64_t>& bins) const override;
  int64_t labels_in(const std::vector<int64_t>& bins) const override {
    int64_t count = 0;
    for (const int64_t document : documents_of(bins)) count += label_count(examples_[static_cast<size_t>(document)]);
    return count;
  }
  std::string fingerprint() const override {
    return cat("bins of ", capacity_, " ", ExampleDataset(examples_, /*pad_id=*/0).fingerprint());
  }

 private:
  std::vector<int64_t> documents_of(const std::vector<int64_t>& bins) const;

  std::vector<Example> examples_;
  Bins bins_;
  int64_t capacity_;
};

std::vector<int64_t> BinDataset::documents_of(const std::vector<int64_t>& bins) const {
  std::vector<int64_t> documents;
  for (const int64_t bin : bins) {
    if (bin < 0 || bin >= size()) {
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = cat("a bin below ", size()),
                   .got = cat(bin),
                   .next = "use examples of this dataset"});
    }
    const auto& some = bins_[static_cast<size_t>(bin)];
    documents.insert(documents.end(), some.begin(), some.end());
  }
  return documents;
}

TrainingBatch BinDataset::batch(const std::vector<int64_t>& bins) const {
  const auto documents = documents_of(bins);
  std::vector<int32_t> ends{0};
  int64_t longest = 0;
  for (const int64_t document : documents) {
    const auto length = static_cast<int64_t>(examples_[static_cast<size_t>(document)].ids.size());
    ends.push_back(ends.back() + static_cast<int32_t>(length));
    longest = std::max(longest, length);
  }
  const auto options = at::TensorOptions(at::kLong);
  TrainingBatch batch{.input_ids = at::empty({1, ends.back()}, options),
                      .labels = at::empty({1, ends.back()}, options)};
  batch.position_ids = at::empty({1, ends.back()}, options);
  batch.cu_seqlens = at::empty({static_cast<int64_t>(ends.size())}, at::TensorOptions(at::kInt));
  batch.max_seqlen = longest;
  std::copy(ends.begin(), ends.end(), batch.cu_seqlens.mutable_data_ptr<int32_t>());
  for (size_t i = 0; i < documents.size(); ++i) {
    const Example& example = examples_[static_cast<size_t>(documents[i])];
    const int32_t first = ends[i];
    std::copy(example.ids.begin(), example.ids.end(), batch.input_ids.mutable_data_ptr<int64_t>() + first);
    std::copy(example.labels.begin(), example.labels.end(), batch.labels.mutable_data_ptr<int64_t>() + first);
    batch.labels.mutable_data_ptr<int64_t>()[first] = -100;
    std::iota(batch.position_ids.mutable_data_ptr<int64_t>() + first,
              batch.position_ids.mutable_data_ptr<int64_t>() + ends[i + 1], 0);
  }
  return batch;
}

// Pieces of at most `capacity` tokens.
std::vector<Example> pieces_of(const std::vector<Example>& examples, int64_t capacity) {
  std::vector<Example> pieces;
  for (const Example& example : examples) {
    for (auto at = example.ids.begin(); at != example.ids.end();) {
      const auto end = at + std::min<std::ptrdiff_t>(capacity, example.ids.end() - at);
      const auto label = example.labels.begin() + (at - example.ids.begin());
      pieces.push_back({{at, end}, {label, label + (end - at)}});
      at = end;
    }
  }
  return pieces;
}

Example joined(const std::vector<Example>& examples) {
  Example stream;
  for (const Example& example : examples) {
    stream.ids.insert(stream.ids.end(), example.ids.begin(), example.ids.end());
    stream.labels.insert(stream.labels.end(), example.labels.begin(), example.labels.end());
  }
  return stream;
}

}  // namespace

Bins best_fit_decreasing(const std::vector<int64_t>& lengths, int64_t capacity) {
  for (const int64_t length : lengths) {
    if (length >= 1 && length <= capacity) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("examples of 1 to ", capacity, " tokens to pack"),
                 .got = cat("one of ", length),
                 .next = "cut it first, or use longer bins"});
  }
  Bins bins;
  for (size_t first = 0; first < lengths.size(); first += kMapBatch) {
    pack(lengths, first, std::min(lengths.size(), first + kMapBatch), capacity, bins);
  }
  return bins;
}

Packing packing_from(const std::string& strategy) {
  const std::vector<std::string> known = {"bfd", "bfd_split", "wrapped"};
  const auto found = std::find(known.begin(), known.end(), strategy);
  if (found == known.end()) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("a packing strategy out of ", join(known)),
                 .got = cat("'", strategy, "'"),
                 .next = nearest_name_hint(strategy, known)});
  }
  constexpr Packing kOf[] = {Packing::kBestFit, Packing::kBestFitSplit, Packing::kWrapped};
  return kOf[found - known.begin()];
}

std::shared_ptr<const Dataset> packed_examples(std::vector<Example> examples, Packing packing, int64_t capacity) {
  if (packing == Packing::kWrapped) {
    return std::make_shared<ExampleDataset>(pieces_of({joined(examples)}, capacity), /*pad_id=*/0);
  }
  if (packing == Packing::kBestFitSplit) examples = pieces_of(examples, capacity);
  std::vector<int64_t> lengths;
  for (const Example& example : examples) lengths.push_back(static_cast<int64_t>(example.ids.size()));
  Bins bins = best_fit_decreasing(lengths, capacity);
  return std::make_shared<BinDataset>(std::move(examples), std::move(bins), capacity);
}

}  // namespace hotswap
