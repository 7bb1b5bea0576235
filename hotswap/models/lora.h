// A LoRA adapter in peft's format: a folder with adapter_config.json and adapter_model.safetensors, and what it changes
// in a model. CausalLM::load_adapter and PretrainedOptions::adapter use it.
//
//   const LoraAdapter adapter = LoraAdapter::read("my-adapter");
//   AppliedLora applied = apply_lora(*model, adapter);   // layers compute with it from now on
//   applied.remove();                                    // exactly as before
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hotswap/models/formats/lora_config.h"
#include "hotswap/models/formats/safetensors.h"

namespace hotswap {

class CausalLM;

class LoraAdapter {
 public:
  // A folder, or org/name on the Hub, as model_folder() takes it.
  static LoraAdapter read(const std::filesystem::path& name, const std::string& revision = "main");

  const LoraConfig& config() const { return config_; }
  const SafetensorsFile& file() const { return file_; }
  const std::filesystem::path& folder() const { return folder_; }
  const std::string& name() const { return name_; }  // the last part of the folder's or the repository's
  // Has it tensors of the embedding or of the output head? Where a model has one weight for both it needs two then.
  bool changes_embedding_or_head(const CausalLM& model) const;

 private:
  LoraAdapter(std::string name, std::filesystem::path folder, LoraConfig config, SafetensorsFile file)
      : name_(std::move(name)), folder_(std::move(folder)), config_(std::move(config)), file_(std::move(file)) {}
  std::string name_;
  std::filesystem::path folder_;
  LoraConfig config_;
  SafetensorsFile file_;
};

// What remove() and merge() need of a model that has an adapter; the model outlives it.
class AppliedLora {
 public:
  void remove();  // layers compute as before, by the tensors that they had
  void merge();   // the adapter becomes a part of the weights

 private:
  friend class LoraPlan;
  CausalLM* model_ = nullptr;
  std::vector<std::function<void()>> undo_;
};

// Error that lists every tensor that is missing, unexpected or of another shape, before anything changes. `untied`: the
// head has a weight of its own only for this adapter, and what the file has of the base model's is that of both.
AppliedLora apply_lora(CausalLM& model, const LoraAdapter& adapter, bool untied = false);

}  // namespace hotswap
