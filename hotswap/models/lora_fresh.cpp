// A new adapter: its tensors under the names of peft's file, drawn as peft draws them.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/models/config.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/weights.h"
#include "hotswap/models/lora.h"
#include "hotswap/models/lora_sites.h"

namespace hotswap {
namespace {

using Named = std::map<std::string, Tensor>;

class Drawn {
 public:
  Drawn(std::string init, uint64_t seed)
      : init_(std::move(init)), generator_(at::make_generator<at::CPUGeneratorImpl>(seed)) {}

  void add(Named& to, const std::string& name, const LoraSite& site, int64_t rank) {
    if (site.embedding != nullptr) {
      const bool zero = init_ != "false";
      to[name + ".lora_embedding_A"] = zero ? at::zeros({rank, site.in()}) : normal({rank, site.in()}, 1);
      to[name + ".lora_embedding_B"] = normal({site.out(), rank}, 1);
      return;
    }
    const double in = 1 / std::sqrt(static_cast<double>(site.in())), out = 1 / std::sqrt(static_cast<double>(rank));
    to[name + ".lora_A.weight"] =
        init_ == "gaussian" ? normal({rank, site.in()}, 1 / static_cast<double>(rank)) : uniform({rank, site.in()}, in);
    to[name + ".lora_B.weight"] = init_ == "false" ? uniform({site.out(), rank}, out) : at::zeros({site.out(), rank});
  }

 private:
  Tensor normal(at::IntArrayRef shape, double spread) { return at::empty(shape).normal_(0, spread, generator_); }
  Tensor uniform(at::IntArrayRef shape, double bound) { return at::empty(shape).uniform_(-bound, bound, generator_); }

  std::string init_;
  at::Generator generator_;
};

// The norms of the rows of W + s B A, which is what DoRA's magnitudes begin as.
Tensor magnitude_of(const LoraSite& site, const Tensor& a, const Tensor& b, double scale) {
  std::vector<Tensor> norms;
  int64_t begin = 0;
  for (const auto& [part, linear] : site.parts) {
    const int64_t rows = linear->weight.rows();
    const Tensor weight = linear->weight.dequantised(at::kFloat);
    const Adapter adapter{
        .a = a.to(weight.device()), .b = site.in_parts(b).narrow(0, begin, rows).to(weight.device()), .scale = scale};
    norms.push_back(at::linalg_vector_norm(adapter.merged(weight), 2, 1));
    begin += rows;
  }
  return site.as_stored(at::cat(norms));
}

// A name that is of no Linear or Embedding here would train nothing: routers and experts take no adapters.
void check_targets(const LoraConfig& config, const LoraSites& sites) {
  for (const std::string& name : config.target_modules.names) {
    const bool found = std::any_of(sites.all.begin(), sites.all.end(), [&](const auto& site) {
      return site.first == name || site.first.ends_with("." + name);
    });
    if (found) continue;
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "target_modules that name linear layers or embeddings of the model",
                 .got = cat(name, " in ", config.read_from),
                 .next = "name some, such as q_proj, or take all-linear; routers and experts take no adapters"});
  }
}

void check_dora(const LoraConfig& config, const LoraRules& rules, const LoraSites& sites) {
  if (!config.use_dora || !sites.targets(rules, sites.embedding)) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "linear layers as target_modules beside use_dora",
               .got = cat("the embedding ", sites.embedding, " in ", config.read_from),
               .next = "leave the embedding out of target_modules, or use_dora"});
}

// Each entry of modules_to_save is of some module, and of none whose weight is another module's, too.
void check_saved_modules(CausalLM& model, const LoraRules& rules, const LoraSites& sites, const std::string& where) {
  const auto refuse_entry = [&](const std::string& expected, const std::string& entry, const std::string& next) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = expected,
                 .got = cat("modules_to_save = ", entry, " in ", where),
                 .next = next});
  };
  for (const std::string& entry : rules.modules_to_save) {
    if (model.config().tie_word_embeddings &&
        (LoraRules::saves_by(entry, sites.head) || LoraRules::saves_by(entry, sites.embedding))) {
      refuse_entry("modules whose weights are their own: tie_word_embeddings is true in this model", entry,
                   "leave it out, or set tie_word_embeddings = false in config.json");
    }
    bool found = false;
    model.each_tensor([&](const std::string& name, Tensor&) {
      const std::string whole = transformers_name(model, name).name;
      found = found || LoraRules::saves_by(entry, whole.substr(0, whole.rfind('.')));
    });
    if (!found) refuse_entry("names of the model's modules", entry, "name one as transformers does, such as lm_head");
  }
}

// What trains whole, as a checkpoint names it: modules_to_save, and biases by `bias`.
void add_whole(CausalLM& model, const LoraRules& rules, const LoraSites& sites, Named& to) {
  if (rules.modules_to_save.empty() && rules.bias == LoraBias::kNone) return;
  std::map<std::string, Tensor> encoded;
  model.each_weight([&](const std::string& name, const Weight& weight) {
    if (weight.encoded()) encoded[name] = weight.dequantised(model.dtype());
  });
  TensorMap chosen;
  for (const auto& [name, tensor] : named_tensors(model)) {
    const std::string whole = transformers_name(model, name).name, module = whole.substr(0, whole.rfind('.'));
    const bool adapts = sites.all.contains(module) && sites.targets(rules, module);
    const bool bias =
        whole.ends_with(".bias") && (rules.bias == LoraBias::kAll || (rules.bias == LoraBias::kLoraOnly && adapts));
    if (!rules.saves(module) && !bias) continue;
    const auto found = encoded.find(name);
    chosen.emplace_back(name, (found == encoded.end() ? tensor : found->second).detach());
  }
  for (const auto& [name, tensor] : in_checkpoint_terms(chosen, model.family().tensor_rules(model.config()))) {
    to[cat(kPeftPrefix, name)] = tensor;
  }
}

}  // namespace

namespace {

// With what it leaves open of that model, and checked.
Json completed_for(CausalLM& model, LoraConfig config) {
  if (config.target_modules.empty()) {
    config.target_modules = default_target_modules(model.config_json().get<std::string>("model_type", ""));
  }
  if (config.base_model_name_or_path.empty()) config.base_model_name_or_path = model.source().string();
  return Json::parse(config.to_json().dump(), config.read_from.empty() ? "the LoraConfig" : config.read_from);
}

void check_modules(CausalLM& model, const LoraConfig& config, const LoraRules& rules, const LoraSites& sites) {
  check_targets(config, sites);
  check_dora(config, rules, sites);
  const bool any = std::any_of(sites.all.begin(), sites.all.end(),
                               [&](const auto& site) { return sites.targets(rules, site.first); });
  if (!any) {
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = "target_modules that name modules of the model",
                 .got = cat(config.to_json()["target_modules"].dump(), " in ", config.read_from),
                 .next = "name some, such as q_proj, or take all-linear"});
  }
  check_saved_modules(model, rules, sites, config.read_from);
}

}  // namespace

void LoraAdapter::check_names(CausalLM& model, LoraConfig config) {
  const Json json = completed_for(model, std::move(config));
  check_modules(model, LoraConfig::from_json(json), LoraRules::from_json(json), LoraSites(model));
}

LoraAdapter LoraAdapter::fresh(CausalLM& model, LoraConfig config, uint64_t seed) {
  const at::NoGradGuard no_grad;
  const Json json = completed_for(model, std::move(config));
  config = LoraConfig::from_json(json);
  const LoraRules rules = LoraRules::from_json(json);
  const LoraSites sites(model);
  check_modules(model, config, rules, sites);
  Named tensors;
  Drawn drawn(config.init_lora_weights, seed);
  for (const auto& [module, site] : sites.all) {
    if (!sites.targets(rules, module)) continue;
    const std::string name = cat(kPeftPrefix, module);
    drawn.add(tensors, name, site, rules.rank_of(module));
    if (config.use_dora && site.embedding == nullptr) {
      tensors[name + ".lora_magnitude_vector"] = magnitude_of(
          site, tensors.at(name + ".lora_A.weight"), tensors.at(name + ".lora_B.weight"), rules.scale_of(module));
    }
  }
  add_whole(model, rules, sites, tensors);
  return {"a new adapter", json.where(), json, std::move(tensors)};
}

}  // namespace hotswap
