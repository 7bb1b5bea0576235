// What a Trainer draws its examples from.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace hotswap {

using at::Tensor;

struct TrainingBatch {
  Tensor input_ids;            // [examples, time] int64
  Tensor labels;               // the same shape, -100 where a token does not count; the model shifts them
  Tensor attention_mask = {};  // the same shape int64, 0 where a row is padded; undefined: no row is
  // Of documents that stand one after the other in a single row, [1, time]: see ForwardArguments. Else undefined.
  Tensor position_ids = {};  // [1, time] int64, from 0 in each document
  Tensor cu_seqlens = {};    // [documents + 1] int32
  int64_t max_seqlen = 0;    // the longest document
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;  // examples
  // Called from a thread of its own, one call at a time, while the update before runs.
  virtual TrainingBatch batch(const std::vector<int64_t>& examples) const = 0;
  // label_count(batch(examples)), which each rank needs of all ranks' batches; faster where it need not read them.
  virtual int64_t labels_in(const std::vector<int64_t>& examples) const;
  // A hash by which a resumed run sees that it has the same examples. Empty: not known, and not compared.
  virtual std::string fingerprint() const { return {}; }
};

// Documents joined into one stream of token ids and cut into examples of equal length: nothing is padded, every token
// is a label, the rest that fills no example is dropped.
class PackedDataset final : public Dataset {
 public:
  // Error where the stream is shorter than one example.
  PackedDataset(std::vector<int64_t> stream, int64_t example_length);
  int64_t size() const override { return static_cast<int64_t>(stream_.size()) / length_; }
  TrainingBatch batch(const std::vector<int64_t>& examples) const override;
  int64_t labels_in(const std::vector<int64_t>& examples) const override {
    return static_cast<int64_t>(examples.size()) * (length_ - 1);
  }
  std::string fingerprint() const override;

 private:
  std::vector<int64_t> stream_;
  int64_t length_;
};

// Examples of lengths of their own. A batch is as long as its longest: the others are padded on the right, with labels
// of -100 and a mask of 0, as transformers' collators do.
struct Example {
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;  // as many; -100 where a token does not count
};

class ExampleDataset final : public Dataset {
 public:
  ExampleDataset(std::vector<Example> examples, int64_t pad_id);
  int64_t size() const override { return static_cast<int64_t>(examples_.size()); }
  TrainingBatch batch(const std::vector<int64_t>& examples) const override;
  int64_t labels_in(const std::vector<int64_t>& examples) const override;
  std::string fingerprint() const override;
  const std::vector<Example>& examples() const { return examples_; }

 private:
  std::vector<Example> examples_;
  int64_t pad_id_;
};

// The labels that count: the model predicts label i + 1 at position i, so position 0 of each row counts for nothing.
int64_t label_count(const TrainingBatch& batch);
int64_t label_count(const Example& example);

// rows * columns ids of the stream from `first` on, as [rows, columns] int64. Error when the stream is too short.
Tensor rows_of(const std::vector<int64_t>& stream, int64_t first, int64_t rows, int64_t columns);

}  // namespace hotswap
