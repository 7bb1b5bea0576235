// A checkpoint of names and tensors that are in memory already.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/models/formats/weights.h"

namespace hotswap {

class TensorsCheckpoint : public Checkpoint {
 public:
  TensorsCheckpoint(std::map<std::string, Tensor> tensors, std::string where)
      : tensors_(std::move(tensors)), where_(std::move(where)) {}
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  bool has(const std::string& name) const override { return tensors_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const override { return tensors_.at(name).sizes().vec(); }
  at::ScalarType dtype(const std::string& name) const override { return tensors_.at(name).scalar_type(); }
  Tensor tensor(const std::string& name, at::ScalarType dtype) const override { return tensors_.at(name).to(dtype); }
  bool is_file_memory(const std::string&, at::ScalarType) const override { return true; }
  std::string where() const override { return where_; }

 private:
  std::map<std::string, Tensor> tensors_;
  std::string where_;
};

}  // namespace hotswap
