#include "hotswap/models/encoder_models/text_checkpoint.h"

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/models/encoder_models/text_family.h"

namespace hotswap {
namespace {

// BERT's first checkpoints, of TensorFlow, name a norm's two tensors so.
std::string in_todays_terms(const std::string& name) {
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  if (ends("LayerNorm.gamma")) return name.substr(0, name.size() - 5) + "weight";
  if (ends("LayerNorm.beta")) return name.substr(0, name.size() - 4) + "bias";
  return name;
}

// Tables that every model makes itself.
bool is_table(const std::string& name) {
  return name.ends_with("embeddings.position_ids") || name.ends_with("embeddings.token_type_ids") ||
         name.ends_with("rotary_emb.inv_freq");
}

bool is_left_out(const TextFamily& family, const std::string& name) {
  return std::find(family.leaves_out.begin(), family.leaves_out.end(), name) != family.leaves_out.end();
}

std::string first_part(const std::string& name) { return name.substr(0, name.find('.')); }

}  // namespace

TextCheckpoint::TextCheckpoint(std::unique_ptr<const Checkpoint> file, TextModel& model, uint64_t seed)
    : file_(std::move(file)) {
  const std::string prefix = model.family().prefix + ".";
  const bool is_base = model.task() == TextTask::kBase;
  std::map<std::string, std::string> files;  // without the prefix -> as the file has it
  for (const std::string& name : file_->names()) {
    const std::string today = in_todays_terms(name);
    files.emplace(today.starts_with(prefix) ? today.substr(prefix.size()) : today, name);
  }
  std::set<std::string> used, parts;
  std::vector<std::string> lacking;
  model.each_tensor([&](const std::string& name, Tensor&) {
    const bool of_trunk = is_base || name.starts_with(prefix);
    const std::string plain = !is_base && of_trunk ? name.substr(prefix.size()) : name;
    if (of_trunk) parts.insert(first_part(plain));
    if (const auto found = files.find(plain); found != files.end()) {
      stored_[name] = found->second;
      used.insert(found->second);
    } else if (!of_trunk || plain.starts_with("pooler.")) {
      lacking.push_back(name);
    }  // else load_into() names it
  });
  for (const auto& [plain, name] : files) {
    if (used.contains(name) || is_table(plain)) continue;
    // Of the trunk: load_into() refuses it. A pooler that the task makes no use of is a head's.
    if (parts.contains(first_part(plain)) && !plain.starts_with("pooler.") && !is_left_out(model.family(), plain)) {
      stored_[name] = name;
    } else {
      unread_.push_back(name);
    }
  }
  if (lacking.empty()) return;
  TextModel drawn(model.config_json(), model.task());
  drawn.init_weights(seed);
  drawn.each_tensor([&](const std::string& name, Tensor& tensor) {
    if (std::find(lacking.begin(), lacking.end(), name) != lacking.end()) fresh_[name] = tensor.detach();
  });
}

std::vector<std::string> TextCheckpoint::names() const {
  std::vector<std::string> names = drawn();
  for (const auto& [name, stored] : stored_) names.push_back(name);
  return names;
}

std::vector<std::string> TextCheckpoint::drawn() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : fresh_) names.push_back(name);
  return names;
}

std::vector<int64_t> TextCheckpoint::shape(const std::string& name) const {
  const auto found = fresh_.find(name);
  return found != fresh_.end() ? found->second.sizes().vec() : file_->shape(stored_.at(name));
}

at::ScalarType TextCheckpoint::dtype(const std::string& name) const {
  return fresh_.contains(name) ? file_->first_dtype() : file_->dtype(stored_.at(name));
}

at::Tensor TextCheckpoint::tensor(const std::string& name, at::ScalarType dtype) const {
  const auto found = fresh_.find(name);
  return found != fresh_.end() ? found->second.to(dtype) : file_->tensor(stored_.at(name), dtype);
}

bool TextCheckpoint::is_file_memory(const std::string& name, at::ScalarType dtype) const {
  return !fresh_.contains(name) && file_->is_file_memory(stored_.at(name), dtype);
}

}  // namespace hotswap
