// What an adapter's file changes in a model: each of its tensors, and the layer or the tensor that it is for.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <map>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/log.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/tensor_rules.h"
#include "hotswap/models/formats/tensors_checkpoint.h"
#include "hotswap/models/lora.h"
#include "hotswap/models/lora_sites.h"

namespace hotswap {
namespace {

// Of one module, by the end of their names.
using LoraTensors = std::map<std::string, Tensor>;

}  // namespace

// Everything is read and checked here, then put into the layers at once.
class LoraPlan {
 public:
  LoraPlan(CausalLM& model, const LoraAdapter& adapter, LoraUse use)
      : model_(model), adapter_(adapter), rules_(adapter.rules()), use_(use), sites_(model) {
    if (use_.trains) config_ = adapter.config();
    sort_tensors();
    plan_products();
    plan_whole_tensors();
    report();
  }

  AppliedLora apply() {
    const at::NoGradGuard no_grad;
    AppliedLora applied;
    applied.model_ = &model_;
    applied.use_ = use_;
    applied.config_ = config_;
    if (use_.trains) model_.requires_grad(false);
    for (const WholeChange& change : whole_) applied.undo_.push_back(put(change));
    for (auto& [linear, adapter] : linears_) {
      if (!use_.trains) adapter = adapter.with_gain(linear->weight);  // of the weight as it is now
      linear->set_adapter(std::move(adapter));
    }
    for (auto& [embedding, adapter] : embeddings_) embedding->set_adapter(std::move(adapter));
    model_.tensors_changed();
    return applied;
  }

  // For the rows that have the adapter `number`. -> the bytes of its tensors
  int64_t apply_to_rows(int64_t number) {
    const at::NoGradGuard no_grad;
    refuse_whole_tensors();
    std::map<const void*, int64_t> bytes;  // of storages: A of several layers is one, and B of them parts of one
    const auto count = [&](const Adapter& adapter) {
      for (const Tensor& t : {adapter.a, adapter.b, adapter.bias, adapter.gain}) {
        if (t.defined()) bytes[t.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(t.storage().nbytes());
      }
    };
    for (const auto& [linear, adapter] : linears_) {
      const Adapter fixed = adapter.with_gain(linear->weight);
      count(fixed);
      linear->set_row_adapter(number, fixed);
    }
    for (const auto& [embedding, adapter] : embeddings_) {
      count(adapter);
      embedding->set_row_adapter(number, adapter);
    }
    model_.tensors_changed();
    int64_t all = 0;
    for (const auto& [storage, size] : bytes) all += size;
    return all;
  }

  // Into the tensors of an adapter that trains already.
  void copy_into() const {
    const at::NoGradGuard no_grad;
    for (const WholeChange& change : whole_) {
      if (change.trains) change.tensor->copy_(change.fresh);
    }
    const auto copy = [](const Adapter& to, const Adapter& from) {
      to.a.copy_(from.a);
      to.b.copy_(from.b);
      if (to.magnitude.defined()) to.magnitude.copy_(from.magnitude);
    };
    for (const auto& [linear, adapter] : linears_) copy(*linear->adapter(), adapter);
    for (const auto& [embedding, adapter] : embeddings_) copy(*embedding->adapter(), adapter);
  }

 private:
  // A tensor of the model, of a weight where that is not null, and what replaces it.
  struct WholeChange {
    Tensor* tensor;
    Weight* weight;
    Tensor fresh;
    bool trains;
  };

  // Undone by the function that it returns.
  static std::function<void()> put(const WholeChange& change) {
    Tensor fresh = change.fresh;
    fresh.set_requires_grad(change.trains);
    if (change.weight == nullptr) {
      const Tensor old = std::exchange(*change.tensor, fresh);
      return [tensor = change.tensor, old] { *tensor = old; };
    }
    const Weight before = *change.weight;
    *change.weight = {.data = fresh, .shard = before.shard};
    return [weight = change.weight, before] { *weight = before; };
  }

  // Is it among what the config's modules are, or, of a tied model, what follows from that?
  bool is_target(const std::string& module) const {
    if (sites_.targets(rules_, module)) return true;
    return module == sites_.head && ties() && sites_.targets(rules_, sites_.embedding);
  }
  bool ties() const { return rules_.ensure_weight_tying && (use_.untied || model_.config().tie_word_embeddings); }

  // "<module>.lora_A.weight" into its module's; what has no such end is a whole tensor, without peft's "base_layer.".
  void sort_tensors() {
    constexpr const char* kEnds[] = {"lora_A.weight",    "lora_B.weight",    "lora_B.bias",
                                     "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector"};
    for (const auto& [stored, tensor] : adapter_.tensors()) {
      if (!stored.starts_with(kPeftPrefix)) {
        unexpected_.push_back(cat(stored, " (not below ", kPeftPrefix, ")"));
        continue;
      }
      const std::string name = stored.substr(kPeftPrefix.size());
      const auto end =
          std::find_if(std::begin(kEnds), std::end(kEnds), [&](const char* e) { return name.ends_with(cat(".", e)); });
      if (end != std::end(kEnds)) {
        lora_[name.substr(0, name.size() - std::string(*end).size() - 1)][*end] = tensor;
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
    const bool is_bias = rules_.bias != LoraBias::kNone && plain.find("bias") != std::string::npos;
    // peft saves the table of an embedding or a head that has an adapter, or whose size changed, beside the adapter.
    const bool is_table = (module == sites_.head || module == sites_.embedding) && plain.ends_with(".weight");
    const bool saved = !of_base && rules_.saves(module);
    if (saved || is_bias || is_table) {
      whole_tensors_[plain] = adapter_.tensors().at(stored);
      if (is_table && !saved) tables_of_base_.insert(plain);
    } else {
      unexpected_.push_back(
          stored + (name.find(".experts.") != std::string::npos ? " (experts' adapters are not implemented)" : ""));
    }
  }

  void plan_products() {
    for (const auto& [module, site] : sites_.all) {
      const auto found = lora_.find(module);
      const bool target = is_target(module);
      if (found == lora_.end()) {
        if (target) missing_.push_back(cat(kPeftPrefix, module, ": no tensors, and target_modules names it"));
      } else if (!target) {
        unexpected(module, found->second, "target_modules does not name it");
      } else {
        plan_product(module, site, found->second);
      }
    }
    for (const auto& [module, tensors] : lora_) {
      if (!sites_.all.contains(module)) unexpected(module, tensors, "no Linear or Embedding of this model");
    }
  }

  void unexpected(const std::string& module, const LoraTensors& tensors, const char* why) {
    for (const auto& [end, tensor] : tensors) unexpected_.push_back(cat(kPeftPrefix, module, ".", end, " (", why, ")"));
  }

  // A tensor of that shape, in the type that adapters compute in.
  Tensor taken(const std::string& module, LoraTensors& tensors, const std::string& end, std::vector<int64_t> shape) {
    const auto found = tensors.find(end);
    const std::string name = cat(kPeftPrefix, module, ".", end);
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

  void plan_product(const std::string& module, const LoraSite& site, LoraTensors tensors) {
    const bool embeds = site.embedding != nullptr;
    const int64_t rank = rules_.rank_of(module), in = site.in(), out = site.out();
    Adapter adapter{.a = taken(module, tensors, embeds ? "lora_embedding_A" : "lora_A.weight", {rank, in}),
                    .b = taken(module, tensors, embeds ? "lora_embedding_B" : "lora_B.weight", {out, rank}),
                    .scale = rules_.scale_of(module)};
    if (rules_.lora_bias && !embeds) {
      adapter.bias = taken(module, tensors, "lora_B.bias", {out});
      if (adapter.bias.defined()) adapter.bias.mul_(adapter.scale);
    }
    if (rules_.use_dora && embeds) {
      refused_ = cat("use_dora for the embedding ", module);
      tensors.erase("lora_magnitude_vector");
    } else if (rules_.use_dora) {
      adapter.magnitude = taken(module, tensors, "lora_magnitude_vector", {out});
    }
    unexpected(module, tensors, "not of such an adapter");
    if (!adapter.a.defined() || !adapter.b.defined()) return;
    if (embeds) {
      if (use_.trains) make_trained(adapter);
      embeddings_.emplace_back(site.embedding, std::move(adapter));
    } else {
      plan_parts(site, adapter);
    }
  }

  // Parts of one Linear share what reads x; each has its rows of the rest.
  void plan_parts(const LoraSite& site, const Adapter& whole) {
    int64_t begin = 0;
    std::shared_ptr<AdapterDropout> dropout;
    if (use_.trains && config_.lora_dropout > 0) {
      dropout = std::make_shared<AdapterDropout>(
          AdapterDropout{.p = config_.lora_dropout, .parts = static_cast<int64_t>(site.parts.size())});
    }
    for (const auto& [part, linear] : site.parts) {
      const int64_t rows = linear->weight.rows();
      const auto own = [&](const Tensor& t) { return t.defined() ? site.in_parts(t).narrow(0, begin, rows) : t; };
      Adapter adapter{.a = whole.a,
                      .b = own(whole.b),
                      .scale = whole.scale,
                      .bias = own(whole.bias),
                      .magnitude = own(whole.magnitude),
                      .dropout = dropout};
      if (use_.trains) make_trained(adapter);
      linears_.emplace_back(linear, std::move(adapter));
      begin += rows;
    }
  }

  // Tensors that an optimizer takes, A of several parts one.
  static void make_trained(Adapter& adapter) {
    adapter.a.set_requires_grad(true);
    for (Tensor* own : {&adapter.b, &adapter.magnitude}) {
      if (own->defined()) *own = own->detach().clone().set_requires_grad(true);
    }
  }

  // modules_to_save, biases, and tables: in the model's terms, in place of its own tensors.
  void plan_whole_tensors() {
    share_tables();
    std::map<std::string, Tensor*> own;
    std::map<const Tensor*, Weight*> weights;
    model_.each_tensor([&](const std::string& name, Tensor& tensor) { own[name] = &tensor; });
    model_.each_weight([&](const std::string&, Weight& weight) { weights[&weight.data] = &weight; });
    const auto read = in_model_terms(std::make_unique<TensorsCheckpoint>(whole_tensors_, adapter_.where()),
                                     model_.family().tensor_rules(model_.config()), model_);
    for (const std::string& name : read->names()) {
      const auto found = own.find(name);
      if (found == own.end()) {
        unexpected_.push_back(cat(kPeftPrefix, name, " (no such tensor in this model)"));
        continue;
      }
      Weight* weight = weights.contains(found->second) ? weights.at(found->second) : nullptr;
      const Tensor& old = *found->second;
      const std::vector<int64_t> shape = weight != nullptr ? weight->shape() : old.sizes().vec();
      if (read->shape(name) != shape) {
        mismatched_.push_back(
            cat(kPeftPrefix, name, " (model: [", join(shape), "], file: [", join(read->shape(name)), "])"));
        continue;
      }
      const bool encoded = weight != nullptr && weight->encoded();
      const Tensor fresh = read->tensor(name).to(model_.device(), encoded ? model_.dtype() : old.scalar_type(),
                                                 /*non_blocking=*/false, /*copy=*/true);
      const bool trains = use_.trains && is_trained(transformers_name(model_, name).name);
      if (!encoded && !trains && at::equal(old, fresh)) continue;
      whole_.push_back({found->second, weight, fresh, trains});
    }
    check_saved(own, *read);
  }

  // What peft saves of the base model's one table is that of embedding and head; a head that is trained apart from its
  // embedding needs a weight of its own.
  void share_tables() {
    const std::string head = sites_.head + ".weight", table = sites_.embedding + ".weight";
    const bool tied = model_.config().tie_word_embeddings;
    if (!tied && !use_.untied) return;
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

  // Of modules_to_save and bias; not a table that peft saves beside an adapter.
  bool is_trained(const std::string& tensor) const {
    const std::string module = tensor.substr(0, tensor.rfind('.'));
    return rules_.saves(module) || is_bias(tensor, module);
  }
  bool is_bias(const std::string& tensor, const std::string& module) const {
    return tensor.ends_with(".bias") &&
           (rules_.bias == LoraBias::kAll || (rules_.bias == LoraBias::kLoraOnly && lora_.contains(module)));
  }

  // Every tensor of what modules_to_save and bias name came.
  void check_saved(const std::map<std::string, Tensor*>& own, const Checkpoint& read) {
    std::set<std::string> found;
    for (const auto& [name, tensor] : own) {
      const std::string whole = transformers_name(model_, name).name;
      const std::string module = whole.substr(0, whole.rfind('.'));
      const bool saved = rules_.saves(module);
      for (const std::string& entry : rules_.modules_to_save) {
        if (LoraRules::saves_by(entry, module)) found.insert(entry);
      }
      if ((saved || is_bias(whole, module)) && !read.has(name)) missing_.push_back(cat(kPeftPrefix, whole));
    }
    for (const std::string& entry : rules_.modules_to_save) {
      // A tied head is no tensor of its own.
      const bool of_head = LoraRules::saves_by(entry, "lm_head") || LoraRules::saves_by(entry, "model.embed_tokens");
      if (model_.config().tie_word_embeddings && of_head) found.insert(entry);
      if (!found.contains(entry))
        missing_.push_back(cat("modules_to_save = ", entry, ": no such module in this model"));
    }
  }

  void refuse_whole_tensors() const {
    if (whole_.empty()) return;
    std::vector<std::string> names;
    model_.each_tensor([&](const std::string& name, Tensor& tensor) {
      for (const WholeChange& change : whole_) {
        if (change.tensor == &tensor) names.push_back(transformers_name(model_, name).name);
      }
    });
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = "an adapter of low-rank products only, for rows beside others without it",
         .got = cat(adapter_.where(), ", which replaces tensors of the model (modules_to_save, bias): ", join(names)),
         .next = "make a model of it: hotswap merge MODEL --adapter DIR OUT"});
  }

  void report() const {
    if (needs_untied_) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "a model whose embedding and output head are two weights, since this adapter replaces one",
                   .got = cat("tie_word_embeddings = true, and ", adapter_.where()),
                   .next = "load the model with the adapter (PretrainedOptions::adapter), which gives it two"});
    }
    if (!refused_.empty()) {
      throw Error({.kind = ErrorKind::kUnsupported,
                   .wanted = "an adapter whose layers are implemented",
                   .got = cat(refused_, " in ", adapter_.where()),
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
    const std::string& base = rules_.base_model;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("exactly the tensors that adapter_config.json and the model need in ", adapter_.where()),
                 .got = parts.empty() ? "no module that target_modules or modules_to_save name" : join(parts, "; "),
                 .next = base.empty() ? std::string("take the adapter that was trained for this model")
                                      : cat("check that this is the model that the adapter was trained for: ", base)});
  }

  CausalLM& model_;
  const LoraAdapter& adapter_;
  const LoraRules& rules_;
  LoraUse use_;
  LoraConfig config_;  // of one that trains
  LoraSites sites_;
  std::map<std::string, LoraTensors> lora_;
  std::map<std::string, Tensor> whole_tensors_;
  std::set<std::string> tables_of_base_;  // among them: what the base model had when it was trained
  std::vector<std::pair<Linear*, Adapter>> linears_;
  std::vector<std::pair<Embedding*, Adapter>> embeddings_;
  std::vector<WholeChange> whole_;
  bool needs_untied_ = false;
  std::string refused_;
  std::vector<std::string> missing_, unexpected_, mismatched_;
};

bool LoraAdapter::changes_embedding_or_head(const CausalLM& model) const {
  const auto begins = [](const std::string& name, const std::string& module) {
    return name.starts_with(cat(kPeftPrefix, module, "."));
  };
  const std::string head = transformers_name(model, "lm_head").name,
                    embedding = transformers_name(model, "model.embed_tokens").name;
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const auto& named) { return begins(named.first, head) || begins(named.first, embedding); });
}

void AppliedLora::remove() {
  model_->each_module([](const std::string&, Module& module) {
    if (auto* linear = dynamic_cast<Linear*>(&module)) linear->set_adapter(std::nullopt);
    if (auto* embedding = dynamic_cast<Embedding*>(&module)) embedding->set_adapter(std::nullopt);
  });
  for (auto undo = undo_.rbegin(); undo != undo_.rend(); ++undo) (*undo)();
  undo_.clear();
  if (use_.trains) model_->requires_grad(true);
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
  if (use_.trains) model_->requires_grad(true);
  model_->tensors_changed();
}

// What an adapter computes with beside its tensors, whose shapes are compared with them.
static void check_same_settings(const std::filesystem::path& folder, const LoraConfig& own) {
  const auto saved = LoraConfig::read(folder / "adapter_config.json", /*fresh=*/false).to_json(), ours = own.to_json();
  for (const char* key : {"lora_alpha", "lora_dropout", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"}) {
    if (saved[key] == ours[key]) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat(key, " = ", saved[key].dump(), ", as the adapter in ", folder.string(), " has it"),
                 .got = ours[key].dump(),
                 .next = "go on with the settings of its adapter_config.json, or begin a new adapter"});
  }
  if (saved["base_model_name_or_path"] != ours["base_model_name_or_path"]) {
    log_warning("the adapter in ", folder.string(), " was trained for ", saved["base_model_name_or_path"].dump(),
                ", and goes on beside ", ours["base_model_name_or_path"].dump());
  }
}

void AppliedLora::restore(const std::filesystem::path& folder) {
  const LoraAdapter adapter = LoraAdapter::read(folder);
  check_same_settings(folder, config_);
  LoraPlan(*model_, adapter, use_).copy_into();
}

AppliedLora apply_lora(CausalLM& model, const LoraAdapter& adapter, LoraUse use) {
  return LoraPlan(model, adapter, use).apply();
}

int64_t apply_lora_to_rows(CausalLM& model, const LoraAdapter& adapter, LoraUse use, int64_t number) {
  return LoraPlan(model, adapter, use).apply_to_rows(number);
}

}  // namespace hotswap
