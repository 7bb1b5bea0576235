// What an adapter's file changes in a model: each of its tensors, and the layer or the tensor that it is for.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>

#include <algorithm>
#include <map>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/tensor_rules.h"
#include "hotswap/models/formats/tensors_checkpoint.h"
#include "hotswap/models/lora.h"

namespace hotswap {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr const char *kHead = "lm_head", *kEmbedding = "model.embed_tokens";

// Names of transformers. Those that module_names changes for rows of the kernel report are of experts, whose tensors
// have the names of the model here.
WholeName transformers_name(const CausalLM& model, const std::string& name) {
  const Family& family = model.family();
  const bool of_experts = cat(name, ".").find(".experts.") != std::string::npos;
  return whole_name(family.tensor_rules(model.config()),
                    of_experts ? name : name_before(family.module_names(model.config()), name));
}

// A module of transformers and what it is here: a Linear, or several that are the parts of one, or an Embedding.
struct Site {
  std::map<size_t, Linear*> parts;
  Embedding* embedding = nullptr;
  int64_t in() const {
    return embedding != nullptr ? embedding->weight.rows() : parts.begin()->second->weight.columns();
  }
  int64_t out() const {
    if (embedding != nullptr) return embedding->weight.columns();
    int64_t rows = 0;
    for (const auto& [part, linear] : parts) rows += linear->weight.rows();
    return rows;
  }
};

// Of one module, by the end of their names.
using LoraTensors = std::map<std::string, Tensor>;

}  // namespace

// Everything is read and checked here, then put into the layers at once.
class LoraPlan {
 public:
  LoraPlan(CausalLM& model, const LoraAdapter& adapter, bool untied)
      : model_(model), adapter_(adapter), config_(adapter.config()), untied_(untied) {
    find_sites();
    sort_tensors();
    plan_products();
    plan_whole_tensors();
    report();
  }

  AppliedLora apply() {
    const at::NoGradGuard no_grad;
    AppliedLora applied;
    applied.model_ = &model_;
    for (const auto& change : whole_) applied.undo_.push_back(change());
    for (auto& [linear, adapter] : linears_) {
      add_gain(*linear, adapter);  // of the weight as it is now
      linear->set_adapter(std::move(adapter));
    }
    for (auto& [embedding, adapter] : embeddings_) embedding->set_adapter(std::move(adapter));
    model_.tensors_changed();
    return applied;
  }

 private:
  // Undone by the function that it returns.
  using Change = std::function<std::function<void()>()>;

  void find_sites() {
    model_.each_module([&](const std::string& name, Module& module) {
      auto* linear = dynamic_cast<Linear*>(&module);
      auto* embedding = dynamic_cast<Embedding*>(&module);
      if (linear == nullptr && embedding == nullptr) return;
      const WholeName whole = transformers_name(model_, name);
      Site& site = sites_[whole.name];
      site.embedding = embedding;
      if (linear != nullptr) site.parts[whole.part] = linear;
    });
    head_ = transformers_name(model_, kHead).name;
    embedding_ = transformers_name(model_, kEmbedding).name;
  }

  // Is it among what the config's modules are, or, of a tied model, what follows from that?
  bool is_target(const std::string& module, const Site& site) const {
    const auto targets = [&](const std::string& name, bool is_linear) {
      return config_.targets({.name = name, .is_linear = is_linear, .is_head = name == head_});
    };
    if (targets(module, site.embedding == nullptr)) return true;
    return module == head_ && ties() && targets(embedding_, false);
  }
  bool ties() const { return config_.ensure_weight_tying && (untied_ || model_.config().tie_word_embeddings); }

  // "<module>.lora_A.weight" into its module's; what has no such end is a whole tensor, without peft's "base_layer.".
  void sort_tensors() {
    constexpr const char* kEnds[] = {"lora_A.weight",    "lora_B.weight",    "lora_B.bias",
                                     "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"};
    for (const std::string& stored : adapter_.file().names()) {
      if (!stored.starts_with(kPrefix)) {
        unexpected_.push_back(cat(stored, " (not below ", kPrefix, ")"));
        continue;
      }
      const std::string name = stored.substr(kPrefix.size());
      const auto end =
          std::find_if(std::begin(kEnds), std::end(kEnds), [&](const char* e) { return name.ends_with(cat(".", e)); });
      if (end != std::end(kEnds)) {
        lora_[name.substr(0, name.size() - std::string(*end).size() - 1)][*end] = adapter_.file().tensor(stored);
      } else {
        sort_whole(stored, name);
      }
    }
  }

  void sort_whole(const std::string& stored, const std::string& name) {
    const std::string base = ".base_layer.";
    const size_t at = name.rfind(base);
    const bool of_base = at != std::string::npos;
    const std::string plain = of_base ? name.substr(0, at + 1) + name.substr(at + base.size()) : name;
    const size_t dot = plain.rfind('.');
    const std::string module = plain.substr(0, dot == std::string::npos ? 0 : dot);
    const bool is_bias = config_.bias != LoraBias::kNone && plain.find("bias") != std::string::npos;
    // peft saves the table of an embedding or a head that has an adapter, or whose size changed, beside the adapter.
    const bool is_table = (module == head_ || module == embedding_) && plain.ends_with(".weight");
    const bool saved = !of_base && config_.saves(module);
    if (saved || is_bias || is_table) {
      whole_tensors_[plain] = adapter_.file().tensor(stored);
      if (is_table && !saved) tables_of_base_.insert(plain);
    } else {
      unexpected_.push_back(
          stored + (name.find(".experts.") != std::string::npos ? " (experts' adapters are not implemented)" : ""));
    }
  }

  void plan_products() {
    for (const auto& [module, site] : sites_) {
      const auto found = lora_.find(module);
      const bool target = is_target(module, site);
      if (found == lora_.end()) {
        if (target) missing_.push_back(cat(kPrefix, module, ": no tensors, and target_modules names it"));
      } else if (!target) {
        unexpected(module, found->second, "target_modules does not name it");
      } else {
        plan_product(module, site, found->second);
      }
    }
    for (const auto& [module, tensors] : lora_) {
      if (!sites_.contains(module)) unexpected(module, tensors, "no Linear or Embedding of this model");
    }
  }

  void unexpected(const std::string& module, const LoraTensors& tensors, const char* why) {
    for (const auto& [end, tensor] : tensors) unexpected_.push_back(cat(kPrefix, module, ".", end, " (", why, ")"));
  }

  // A tensor of that shape, in the type that adapters compute in.
  Tensor taken(const std::string& module, LoraTensors& tensors, const std::string& end, std::vector<int64_t> shape) {
    const auto found = tensors.find(end);
    const std::string name = cat(kPrefix, module, ".", end);
    if (found == tensors.end()) {
      missing_.push_back(name);
      return {};
    }
    const Tensor tensor = found->second;
    tensors.erase(found);
    if (tensor.sizes() != at::IntArrayRef(shape) || !tensor.is_floating_point()) {
      mismatched_.push_back(
          cat(name, " (expected [", join(shape), "], file: ", tensor.scalar_type(), " [", join(tensor.sizes()), "])"));
      return {};
    }
    const at::ScalarType wide = c10::promoteTypes(at::kFloat, model_.dtype());
    return tensor.to(model_.device(), wide, /*non_blocking=*/false, /*copy=*/true);
  }

  void plan_product(const std::string& module, const Site& site, LoraTensors tensors) {
    const bool embeds = site.embedding != nullptr;
    const int64_t rank = config_.rank_of(module), in = site.in(), out = site.out();
    Adapter adapter{.a = taken(module, tensors, embeds ? "lora_embedding_A" : "lora_A.weight", {rank, in}),
                    .b = taken(module, tensors, embeds ? "lora_embedding_B" : "lora_B.weight", {out, rank}),
                    .scale = config_.scale_of(module)};
    if (config_.lora_bias && !embeds) {
      adapter.bias = taken(module, tensors, "lora_B.bias", {out});
      if (adapter.bias.defined()) adapter.bias.mul_(adapter.scale);
    }
    if (config_.use_dora && embeds) {
      refused_ = cat("use_dora for the embedding ", module);
      tensors.erase("lora_magnitude_vector");
    } else if (config_.use_dora) {
      adapter.gain = taken(module, tensors, "lora_magnitude_vector", {out});
    }
    unexpected(module, tensors, "not of such an adapter");
    if (!adapter.a.defined() || !adapter.b.defined()) return;
    if (embeds) {
      embeddings_.emplace_back(site.embedding, std::move(adapter));
    } else {
      plan_parts(site, adapter);
    }
  }

  // Parts of one Linear share what reads x; each has its rows of the rest.
  void plan_parts(const Site& site, const Adapter& whole) {
    int64_t begin = 0;
    for (const auto& [part, linear] : site.parts) {
      const int64_t rows = linear->weight.rows();
      const auto own = [&](const Tensor& t) { return t.defined() ? t.narrow(0, begin, rows) : t; };
      linears_.emplace_back(
          linear,
          Adapter{
              .a = whole.a, .b = own(whole.b), .scale = whole.scale, .bias = own(whole.bias), .gain = own(whole.gain)});
      begin += rows;
    }
  }

  // DoRA's magnitudes were trained; their norms are those of the rows of W + scale * b a.
  static void add_gain(const Linear& linear, Adapter& adapter) {
    if (!adapter.gain.defined()) return;
    const Tensor magnitude = std::exchange(adapter.gain, Tensor());
    const Tensor weight = linear.weight.dequantised(adapter.a.scalar_type());
    adapter.gain = at::div(magnitude, at::linalg_vector_norm(adapter.merged(weight), 2, 1));
  }

  // modules_to_save, biases, and tables: in the model's terms, in place of its own tensors.
  void plan_whole_tensors() {
    share_tables();
    std::map<std::string, Tensor*> own;
    std::map<const Tensor*, Weight*> weights;
    model_.each_tensor([&](const std::string& name, Tensor& tensor) { own[name] = &tensor; });
    model_.each_weight([&](const std::string&, Weight& weight) { weights[&weight.data] = &weight; });
    const auto read =
        in_model_terms(std::make_unique<TensorsCheckpoint>(whole_tensors_, adapter_.file().path().string()),
                       model_.family().tensor_rules(model_.config()), model_);
    for (const std::string& name : read->names()) {
      const auto found = own.find(name);
      if (found == own.end()) {
        unexpected_.push_back(cat(kPrefix, name, " (no such tensor in this model)"));
        continue;
      }
      Weight* weight = weights.contains(found->second) ? weights.at(found->second) : nullptr;
      const Tensor& old = *found->second;
      const std::vector<int64_t> shape =
          weight != nullptr ? std::vector<int64_t>{weight->rows(), weight->columns()} : old.sizes().vec();
      if (read->shape(name) != shape) {
        mismatched_.push_back(
            cat(kPrefix, name, " (model: [", join(shape), "], file: [", join(read->shape(name)), "])"));
        continue;
      }
      const bool encoded = weight != nullptr && weight->encoded();
      const Tensor fresh = read->tensor(name).to(model_.device(), encoded ? model_.dtype() : old.scalar_type(),
                                                 /*non_blocking=*/false, /*copy=*/true);
      if (!encoded && at::equal(old, fresh)) continue;
      plan_change(found->second, weight, fresh);
    }
    check_saved(own, *read);
  }

  // What peft saves of the base model's one table is that of embedding and head; a head that is trained apart from its
  // embedding needs a weight of its own.
  void share_tables() {
    const std::string head = head_ + ".weight", table = embedding_ + ".weight";
    const bool tied = model_.config().tie_word_embeddings;
    if (!tied && !untied_) return;
    if (tied) {
      const bool saves_one = whole_tensors_.contains(table) && !tables_of_base_.contains(table);
      if (whole_tensors_.contains(head) && !tables_of_base_.contains(head)) needs_untied_ = true;
      if (saves_one) needs_untied_ = true;
      if (!whole_tensors_.contains(table) && tables_of_base_.contains(head))
        whole_tensors_[table] = whole_tensors_[head];
      whole_tensors_.erase(head);
      return;
    }
    if (tables_of_base_.contains(table) && !whole_tensors_.contains(head)) whole_tensors_[head] = whole_tensors_[table];
    if (tables_of_base_.contains(head) && !whole_tensors_.contains(table)) whole_tensors_[table] = whole_tensors_[head];
  }

  void plan_change(Tensor* tensor, Weight* weight, const Tensor& fresh) {
    whole_.emplace_back([tensor, weight, fresh]() -> std::function<void()> {
      const Tensor old = *tensor;
      if (weight == nullptr) {
        *tensor = fresh;
        return [tensor, old] { *tensor = old; };
      }
      const Weight before = *weight;
      *weight = {.data = fresh, .shard = before.shard};
      return [weight, before] { *weight = before; };
    });
  }

  // Every tensor of what modules_to_save and bias name came.
  void check_saved(const std::map<std::string, Tensor*>& own, const Checkpoint& read) {
    std::set<std::string> found;
    for (const auto& [name, tensor] : own) {
      const std::string whole = transformers_name(model_, name).name;
      const std::string module = whole.substr(0, whole.rfind('.'));
      const bool saved = config_.saves(module);
      for (const std::string& entry : config_.modules_to_save) {
        if (LoraConfig::saves_by(entry, module)) found.insert(entry);
      }
      const bool bias = whole.ends_with(".bias") && (config_.bias == LoraBias::kAll ||
                                                     (config_.bias == LoraBias::kLoraOnly && lora_.contains(module)));
      if ((saved || bias) && !read.has(name)) missing_.push_back(cat(kPrefix, whole));
    }
    if (model_.config().tie_word_embeddings)
      found.insert(config_.modules_to_save.begin(), config_.modules_to_save.end());
    for (const std::string& entry : config_.modules_to_save) {
      if (!found.contains(entry))
        missing_.push_back(cat("modules_to_save = ", entry, ": no such module in this model"));
    }
  }

  void report() const {
    if (needs_untied_) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "a model whose embedding and output head are two weights, since this adapter replaces one",
                   .got = cat("tie_word_embeddings = true, and ", adapter_.file().path().string()),
                   .next = "load the model with the adapter (PretrainedOptions::adapter), which gives it two"});
    }
    if (!refused_.empty()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "an adapter whose layers are implemented",
                   .got = cat(refused_, " in ", adapter_.folder().string()),
                   .next = "merge the adapter in Python: merge_and_unload() of peft, then save_pretrained"});
    }
    std::vector<std::string> parts;
    const auto list = [&](const std::vector<std::string>& names, const char* what) {
      if (!names.empty()) parts.push_back(cat(names.size(), what, join(names)));
    };
    list(missing_, " missing: ");
    list(unexpected_, " unexpected: ");
    list(mismatched_, " of another shape: ");
    if (parts.empty() && (!linears_.empty() || !embeddings_.empty() || !whole_.empty())) return;
    const std::string& base = config_.base_model;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("exactly the tensors that adapter_config.json and the model need in ",
                               adapter_.file().path().string()),
                 .got = parts.empty() ? "no module that target_modules or modules_to_save name" : join(parts, "; "),
                 .next = base.empty() ? std::string("take the adapter that was trained for this model")
                                      : cat("check that this is the model that the adapter was trained for: ", base)});
  }

  CausalLM& model_;
  const LoraAdapter& adapter_;
  const LoraConfig& config_;
  bool untied_;
  std::string head_, embedding_;  // by transformers' names
  std::map<std::string, Site> sites_;
  std::map<std::string, LoraTensors> lora_;
  std::map<std::string, Tensor> whole_tensors_;
  std::set<std::string> tables_of_base_;  // among them: what the base model had when it was trained
  std::vector<std::pair<Linear*, Adapter>> linears_;
  std::vector<std::pair<Embedding*, Adapter>> embeddings_;
  std::vector<Change> whole_;
  bool needs_untied_ = false;
  std::string refused_;
  std::vector<std::string> missing_, unexpected_, mismatched_;
};

bool LoraAdapter::changes_embedding_or_head(const CausalLM& model) const {
  const auto begins = [](const std::string& name, const std::string& module) {
    return name.starts_with(cat(kPrefix, module, "."));
  };
  const std::string head = transformers_name(model, kHead).name, embedding = transformers_name(model, kEmbedding).name;
  const auto& names = file_.names();
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return begins(name, head) || begins(name, embedding); });
}

void AppliedLora::remove() {
  model_->each_module([](const std::string&, Module& module) {
    if (auto* linear = dynamic_cast<Linear*>(&module)) linear->set_adapter(std::nullopt);
    if (auto* embedding = dynamic_cast<Embedding*>(&module)) embedding->set_adapter(std::nullopt);
  });
  for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) (*undo)();
  undo_.clear();
  model_->tensors_changed();
}

void AppliedLora::merge() {
  if (model_->has_encoded_weights()) model_->unpack();
  model_->each_module([](const std::string&, Module& module) {
    if (const auto* linear = dynamic_cast<Linear*>(&module)) linear->check_merge();
  });
  model_->each_module([](const std::string&, Module& module) {
    if (auto* linear = dynamic_cast<Linear*>(&module)) linear->merge_adapter();
    if (auto* embedding = dynamic_cast<Embedding*>(&module)) embedding->merge_adapter();
  });
  undo_.clear();
  model_->tensors_changed();
}

AppliedLora apply_lora(CausalLM& model, const LoraAdapter& adapter, bool untied) {
  return LoraPlan(model, adapter, untied).apply();
}

}  // namespace hotswap
