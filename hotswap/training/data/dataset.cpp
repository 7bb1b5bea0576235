#include "hotswap/training/data/dataset.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ne.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/base/sha256.h"

namespace hotswap {
namespace {

void check_example(int64_t example, int64_t size) {
  if (example >= 0 && example < size) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("an example below ", size),
               .got = cat(example),
               .next = "use examples of this dataset"});
}

std::span<const uint8_t> bytes_of(const std::vector<int64_t>& ids) {
  return {reinterpret_cast<const uint8_t*>(ids.data()), ids.size() * sizeof(int64_t)};
}

}  // namespace

int64_t Dataset::labels_in(const std::vector<int64_t>& examples) const { return label_count(batch(examples)); }

PackedDataset::PackedDataset(std::vector<int64_t> stream, int64_t example_length)
    : stream_(std::move(stream)), length_(example_length) {
  if (length_ < 2 || size() == 0) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "at least one example, of two tokens or more",
                 .got = cat("a text of ", stream_.size(), " tokens and examples of ", length_),
                 .next = "pass more text, or use shorter examples"});
  }
}

TrainingBatch PackedDataset::batch(const std::vector<int64_t>& examples) const {
  Tensor ids = at::empty({static_cast<int64_t>(examples.size()), length_}, at::TensorOptions(at::kLong));
  int64_t* out = ids.mutable_data_ptr<int64_t>();
  for (const int64_t example : examples) {
    check_example(example, size());
    out = std::copy_n(stream_.begin() + example * length_, length_, out);
  }
  return {.input_ids = ids, .labels = ids};
}

std::string PackedDataset::fingerprint() const {
  return cat("packed ", length_, " ", to_hex(sha256(bytes_of(stream_))));
}

ExampleDataset::ExampleDataset(std::vector<Example> examples, int64_t pad_id)
    : examples_(std::move(examples)), pad_id_(pad_id) {
  for (const Example& example : examples_) {
    if (!example.ids.empty() && example.ids.size() == example.labels.size()) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "examples of one token or more, with a label for each",
                 .got = cat(example.ids.size(), " tokens and ", example.labels.size(), " labels"),
                 .next = "drop empty examples"});
  }
}

TrainingBatch ExampleDataset::batch(const std::vector<int64_t>& examples) const {
  size_t time = 0;
  for (const int64_t example : examples) {
    check_example(example, size());
    time = std::max(time, examples_[static_cast<size_t>(example)].ids.size());
  }
  const auto rows = static_cast<int64_t>(examples.size()), columns = static_cast<int64_t>(time);
  // Without torch's loops, whose threads belong to the forward that runs meanwhile.
  const auto filled = [&](int64_t value) {
    Tensor tensor = at::empty({rows, columns}, at::TensorOptions(at::kLong));
    std::fill_n(tensor.mutable_data_ptr<int64_t>(), rows * columns, value);
    return tensor;
  };
  TrainingBatch batch{.input_ids = filled(pad_id_), .labels = filled(-100)};
  const Tensor mask = filled(0);
  bool padded = false;
  for (size_t row = 0; row < examples.size(); ++row) {
    const Example& example = examples_[static_cast<size_t>(examples[row])];
    const auto first = static_cast<int64_t>(row) * columns, count = static_cast<int64_t>(example.ids.size());
    std::copy(example.ids.begin(), example.ids.end(), batch.input_ids.mutable_data_ptr<int64_t>() + first);
    std::copy(example.labels.begin(), example.labels.end(), batch.labels.mutable_data_ptr<int64_t>() + first);
    std::fill_n(mask.mutable_data_ptr<int64_t>() + first, count, 1);
    padded = padded || count < columns;
  }
  if (padded) batch.attention_mask = mask;  // without one, kernels need not look
  return batch;
}

int64_t ExampleDataset::labels_in(const std::vector<int64_t>& examples) const {
  int64_t count = 0;
  for (const int64_t example : examples) {
    check_example(example, size());
    count += label_count(examples_[static_cast<size_t>(example)]);
  }
  return count;
}

std::string ExampleDataset::fingerprint() const {
  std::vector<uint8_t> digests;
  for (const Example& example : examples_) {
    for (const auto* values : {&example.ids, &example.labels}) {
      const Sha256 digest = sha256(bytes_of(*values));
      digests.insert(digests.end(), digest.begin(), digest.end());
    }
  }
  return cat("examples ", to_hex(sha256(digests)));
}

int64_t label_count(const Example& example) {
  return std::count_if(example.labels.begin() + 1, example.labels.end(), [](int64_t label) { return label != -100; });
}

int64_t label_count(const TrainingBatch& batch) {
  return batch.labels.narrow(1, 1, batch.labels.size(1) - 1).ne(-100).sum().item<int64_t>();
}

Tensor rows_of(const std::vector<int64_t>& stream, int64_t first, int64_t rows, int64_t columns) {
  const auto size = static_cast<int64_t>(stream.size());
  if (first < 0 || rows <= 0 || columns <= 0 || columns > (size - first) / rows) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(rows, " rows of ", columns, " token ids from position ", first),
                 .got = cat("a text of ", size, " ids"),
                 .next = "pass more text, or use fewer or shorter rows"});
  }
  Tensor batch = at::empty({rows, columns}, at::TensorOptions(at::kLong));
  std::copy_n(stream.begin() + first, rows * columns, batch.mutable_data_ptr<int64_t>());
  return batch;
}

}  // namespace hotswap
