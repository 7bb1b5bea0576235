// How far apart two tokens are, as rows of a table: DeBERTa's, in which distances beyond the near ones share rows on a
// logarithmic scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

namespace hotswap {

using at::Tensor;

struct DistanceRows {
  int64_t max_distance = 0;
  int64_t buckets = 0;  // rows to each side, of which the nearer half has one for each distance; 0: max_distance
  int64_t to_each_side() const { return buckets > 0 ? buckets : max_distance; }
  int64_t rows() const { return 2 * to_each_side(); }
  // Of the distances from -(longest - 1) to longest - 1, in order: [2 * longest - 1] int64 on the CPU.
  Tensor by_distance(int64_t longest) const;
};

// What all layers of a forward share. Only those rows of the table that two of its tokens can have take part.
class RelativePositions {
 public:
  // lengths: of the sequences, each of which gets an index.
  RelativePositions(const DistanceRows& of, const std::vector<int64_t>& lengths, at::Device device);
  Tensor cut(const Tensor& table) const;  // [rows, dim] -> [distances, dim]
  // Into what cut() returns, of each query and key: [time, time] int64
  const Tensor& index(int64_t time) const { return index_.at(time); }

 private:
  int64_t first_ = 0, count_ = 0;
  std::map<int64_t, Tensor> index_;  // by a sequence's length
};

}  // namespace hotswap
