// A checkpoint in the terms of a TextModel: trunks are saved below their family's prefix or without it, heads of other
// tasks stand beside them, and a task's own head may not be there yet.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hotswap/models/encoder_models/text_model.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {

class TextCheckpoint : public Checkpoint {
 public:
  // Error where it lacks tensors of the trunk or holds others of it. What it lacks of the head and of the pooler is
  // drawn as init_weights() of the model does, by `seed`.
  TextCheckpoint(std::unique_ptr<const Checkpoint> file, TextModel& model, uint64_t seed);
  std::vector<std::string> names() const override;
  bool has(const std::string& name) const override { return stored_.contains(name) || fresh_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const override;
  at::ScalarType dtype(const std::string& name) const override;
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const override;
  bool is_file_memory(const std::string& name, at::ScalarType dtype) const override;
  std::string where() const override { return file_->where(); }

  std::vector<std::string> drawn() const;                             // names that it lacks
  const std::vector<std::string>& unread() const { return unread_; }  // what it holds of other tasks

 private:
  std::unique_ptr<const Checkpoint> file_;
  std::map<std::string, std::string> stored_;  // the model's name -> the file's
  std::map<std::string, at::Tensor> fresh_;
  std::vector<std::string> unread_;
};

}  // namespace hotswap
