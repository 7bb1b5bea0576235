#include "hotswap/models/formats/weights.h"

#include <set>

#include "hotswap/base/error.h"
#include "hotswap/models/formats/no_model.h"
#include "hotswap/models/formats/safetensors_dtype.h"

namespace hotswap {
namespace {

// One file or an index with its shards: the same questions.
template <typename Files>
class SafetensorsCheckpoint : public Checkpoint {
 public:
  explicit SafetensorsCheckpoint(const std::filesystem::path& path) : files_(path), where_(path.string()) {}
  std::vector<std::string> names() const override { return files_.names(); }
  bool has(const std::string& name) const override { return files_.has(name); }
  std::vector<int64_t> shape(const std::string& name) const override { return entry(name).shape; }
  at::ScalarType dtype(const std::string& name) const override {
    return find_safetensors_dtype(entry(name).dtype)->type;
  }
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const override {
    return files_.tensor(name).to(dtype);
  }
  bool is_file_memory(const std::string& name, at::ScalarType dtype) const override {
    return dtype == this->dtype(name);
  }
  std::string where() const override { return where_; }

 private:
  const SafetensorsEntry& entry(const std::string& name) const {
    if constexpr (std::is_same_v<Files, SafetensorsIndex>) {
      return files_.shard(name).entry(name);
    } else {
      return files_.entry(name);
    }
  }
  Files files_;
  std::string where_;
};

class GgufCheckpoint : public Checkpoint {
 public:
  explicit GgufCheckpoint(const std::filesystem::path& path) : file_(path) {}
  std::vector<std::string> names() const override {
    std::vector<std::string> names = file_.names();
    std::erase(names, kRopeDivisors);  // part of the config, see config_from_gguf
    return names;
  }
  bool has(const std::string& name) const override { return name != kRopeDivisors && file_.has_tensor(name); }
  std::vector<int64_t> shape(const std::string& name) const override { return file_.info(name).shape; }
  // As transformers has it, whatever the file's types are: they often differ from tensor to tensor.
  at::ScalarType dtype(const std::string&) const override { return at::kFloat; }
  at::Tensor tensor(const std::string& name, at::ScalarType dtype) const override {
    const bool direct = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
    return file_.tensor(name, direct ? dtype : at::kFloat).to(dtype);
  }
  std::optional<Weight> encoded(const std::string& name) const override { return file_.encoded(name); }
  bool is_file_memory(const std::string&, at::ScalarType) const override { return false; }
  std::string where() const override { return file_.path().string(); }
  const GgufFile* gguf() const override { return &file_; }

 private:
  GgufFile file_;
};

bool ends_with(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Tables that older checkpoints carry and every model computes itself.
bool ignorable(const std::string& name) {
  return ends_with(name, "rotary_emb.inv_freq") || ends_with(name, "rotary_emb.cos_cached") ||
         ends_with(name, "rotary_emb.sin_cached");
}

std::vector<std::string> files_ending(const std::filesystem::path& folder, std::string_view end) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (ends_with(entry.path().filename().string(), end)) found.push_back(entry.path().filename().string());
  }
  std::sort(found.begin(), found.end());
  return found;
}

// Which tensor of the checkpoint fills which of the module.
struct Plan {
  Tensor* to;
  std::string from;
  bool keeps_dtype;  // a buffer: the type that the module gave it
};

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const LoadOptions& options) : checkpoint_(checkpoint), options_(options) {}

  std::vector<Plan> make(Module& module) {
    std::set<std::string> used;
    std::set<const Tensor*> parameters;
    module.each_parameter([&](const std::string&, Tensor& tensor) { parameters.insert(&tensor); });
    std::vector<Plan> plan;
    module.each_tensor([&](const std::string& name, Tensor& tensor) {
      const std::string source = source_of(name);
      used.insert(source);
      if (!checkpoint_.has(source)) {
        missing_.push_back(name);
      } else if (check(name, tensor, source)) {
        plan.push_back({&tensor, source, !parameters.contains(&tensor)});
      }
    });
    for (const auto& [name, of] : options_.tied) {
      used.insert(name);
      used.insert(of);
    }
    for (const std::string& name : checkpoint_.names()) {
      if (used.count(name) == 0 && !ignorable(name)) unexpected_.push_back(name);
    }
    report();
    return plan;
  }

 private:
  // Tied tensors have one source: the original, or the other name where only that is in the file.
  std::string source_of(const std::string& name) const {
    for (const auto& [alias, of] : options_.tied) {
      if (name == alias || name == of) return checkpoint_.has(of) || !checkpoint_.has(alias) ? of : alias;
    }
    return name;
  }

  bool check(const std::string& name, const Tensor& tensor, const std::string& source) {
    const auto shape = checkpoint_.shape(source);
    const bool same_kind = at::isFloatingType(checkpoint_.dtype(source)) == tensor.is_floating_point();
    if (tensor.sizes() == at::IntArrayRef(shape) && same_kind) return true;
    mismatched_.push_back(cat(name, " (model: ", tensor.scalar_type(), " [", join(tensor.sizes()),
                              "], file: ", checkpoint_.dtype(source), " [", join(shape), "])"));
    return false;
  }

  void report() const {
    std::vector<std::string> parts;
    if (!missing_.empty()) parts.push_back(cat(missing_.size(), " missing: ", join(missing_)));
    if (!unexpected_.empty()) parts.push_back(cat(unexpected_.size(), " unexpected: ", join(unexpected_)));
    if (!mismatched_.empty())
      parts.push_back(cat(mismatched_.size(), " of another shape or kind: ", join(mismatched_)));
    if (parts.empty()) return;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("exactly the model's tensors in ", checkpoint_.where()),
                 .got = join(parts, "; "),
                 .next = "check that the config and the weights belong together"});
  }

  const Checkpoint& checkpoint_;
  const LoadOptions& options_;
  std::vector<std::string> missing_, unexpected_, mismatched_;
};

}  // namespace

at::ScalarType Checkpoint::first_dtype() const {
  for (const std::string& name : names()) {
    if (at::isFloatingType(dtype(name))) return dtype(name);
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("a floating point tensor in ", where()),
               .got = "none",
               .next = "check the file"});
}

std::unique_ptr<const Checkpoint> open_checkpoint(const std::filesystem::path& folder,
                                                  const std::optional<std::string>& gguf_file) {
  if (gguf_file) return std::make_unique<GgufCheckpoint>(folder / *gguf_file);
  if (std::filesystem::is_regular_file(folder) && folder.extension() == ".gguf") {
    return std::make_unique<GgufCheckpoint>(folder);
  }
  if (!std::filesystem::is_directory(folder)) {
    refuse_no_model(folder);
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a folder with a model's weights",
                 .got = cat("no folder at ", folder.string()),
                 .next = "check the path"});
  }
  // transformers would load it over another model
  if (std::filesystem::exists(folder / "adapter_config.json")) refuse_no_model(folder);
  const auto single = folder / "model.safetensors", index = folder / "model.safetensors.index.json";
  if (std::filesystem::exists(single)) return std::make_unique<SafetensorsCheckpoint<SafetensorsFile>>(single);
  if (std::filesystem::exists(index)) return std::make_unique<SafetensorsCheckpoint<SafetensorsIndex>>(index);
  const auto ggufs = files_ending(folder, ".gguf"), pickles = files_ending(folder, ".bin");
  throw Error({.kind = ErrorKind::kNotFound,
               .wanted = cat("model.safetensors or model.safetensors.index.json in ", folder.string()),
               .got = !ggufs.empty()     ? cat("GGUF files: ", join(ggufs))
                      : !pickles.empty() ? cat("pickled weights, which could run code when read: ", join(pickles))
                                         : std::string("neither"),
               .next = !ggufs.empty() ? "name one as gguf_file"
                                      : "save the model with save_pretrained of transformers >= 4.34"});
}

namespace {

std::map<const Tensor*, Weight*> weights_of(Module& module) {
  std::map<const Tensor*, Weight*> found;
  module.each_weight([&](const std::string&, Weight& weight) { found[&weight.data] = &weight; });
  return found;
}

}  // namespace

void load_into(Module& module, const Checkpoint& checkpoint, const LoadOptions& options) {
  const std::vector<Plan> plan = Planner(checkpoint, options).make(module);
  const std::map<const Tensor*, Weight*> weights = weights_of(module);
  std::map<std::string, Tensor> loaded;  // tied tensors are one
  for (const auto& [to, from, keeps_dtype] : plan) {
    const auto weight = weights.find(to);
    if (weight != weights.end()) *weight->second = {.data = weight->second->data};  // of what was there before
    if (options.keep_formats && weight != weights.end()) {
      if (auto stored = checkpoint.encoded(from)) {
        *weight->second = *std::move(stored);
        weight->second->each_tensor([&](Tensor& tensor) { tensor = tensor.to(options.device); });
        continue;
      }
    }
    Tensor& tensor = loaded[from];
    if (!tensor.defined()) {
      const at::ScalarType stored = checkpoint.dtype(from);
      const bool changes = options.dtype && at::isFloatingType(stored);
      const at::ScalarType wanted = keeps_dtype ? to->scalar_type() : changes ? *options.dtype : stored;
      const bool copy = options.copy && checkpoint.is_file_memory(from, wanted);
      tensor = checkpoint.tensor(from, wanted).to(options.device, wanted, /*non_blocking=*/false, copy);
      tensor.set_requires_grad(to->requires_grad());
    }
    *to = tensor;
  }
  module.tensors_changed();
}

TensorMap named_tensors(Module& module) {
  TensorMap result;
  module.each_tensor([&](const std::string& name, Tensor& tensor) { result.emplace_back(name, tensor); });
  return result;
}

}  // namespace hotswap
