// A LoRA adapter in peft's format: a folder with adapter_config.json and adapter_model.safetensors, or one that begins
// here, and what it changes in a model. CausalLM::load_adapter, add_adapter and PretrainedOptions::adapter use it.
//
//   const LoraAdapter adapter = LoraAdapter::read("my-adapter");
//   AppliedLora applied = apply_lora(*model, adapter);   // layers compute with it from now on
//   applied.remove();                                    // exactly as before
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/layers/module.h"
#include "hotswap/models/formats/lora_rules.h"
#include "hotswap/models/lora_config.h"

namespace hotswap {

class CausalLM;

class LoraAdapter {
 public:
  // A folder, or org/name on the Hub, as model_folder() takes it.
  static LoraAdapter read(const std::filesystem::path& name, const std::string& revision = "main");
  // One that changes nothing yet, or little (init_lora_weights), for this model: tensors as peft draws them, of `seed`.
  static LoraAdapter fresh(CausalLM& model, LoraConfig config, uint64_t seed);

  // The errors that fresh() would throw for names that are of no module, for a model without weights, too.
  static void check_names(CausalLM& model, LoraConfig config);

  const LoraRules& rules() const { return rules_; }
  LoraConfig config() const;  // to train it further: Error where that is not implemented
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }  // as the file names them
  const std::string& where() const { return where_; }                        // of the tensors, for messages
  const std::string& name() const { return name_; }  // the last part of the folder's or the repository's
  // Has it tensors of the embedding or of the output head? Where a model has one weight for both it needs two then.
  bool changes_embedding_or_head(const CausalLM& model) const;

 private:
  LoraAdapter(std::string name, std::string where, Json json, std::map<std::string, Tensor> tensors)
      : name_(std::move(name)),
        where_(std::move(where)),
        json_(std::move(json)),
        rules_(LoraRules::from_json(json_)),
        tensors_(std::move(tensors)) {}
  std::string name_, where_;
  Json json_;  // adapter_config.json
  LoraRules rules_;
  std::map<std::string, Tensor> tensors_;
};

struct LoraUse {
  bool untied = false;  // the head has a weight of its own only for this adapter: what the file has of the base
                        // model's is that of both
  bool trains = false;  // the adapter's tensors learn, and no others
};

// What remove(), merge() and save() need of a model that has an adapter; the model outlives it.
class AppliedLora {
 public:
  void remove();  // layers compute as before, by the tensors that they had
  void merge();   // the adapter becomes a part of the weights
  bool trains() const { return use_.trains; }
  // Of one that trains: adapter_config.json and adapter_model.safetensors, as peft's save_pretrained writes them.
  void save(const std::filesystem::path& folder) const;
  // Of one that trains: its tensors become those of a folder that save() wrote; they stay the tensors that they are.
  void restore(const std::filesystem::path& folder);

 private:
  friend class LoraPlan;
  CausalLM* model_ = nullptr;
  LoraUse use_;
  LoraConfig config_;
  std::vector<std::function<void()>> undo_;
};

// Error that lists every tensor that is missing, unexpected or of another shape, before anything changes.
AppliedLora apply_lora(CausalLM& model, const LoraAdapter& adapter, LoraUse use = {});
// The same for the rows of a batch that have the adapter `number`. -> the bytes of its tensors
int64_t apply_lora_to_rows(CausalLM& model, const LoraAdapter& adapter, LoraUse use, int64_t number);

}  // namespace hotswap
