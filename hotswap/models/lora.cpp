// An adapter read from its folder, and a model's own; what its tensors change is lora_plan.cpp's.
#include "hotswap/models/lora.h"

#include "hotswap/base/error.h"
#include "hotswap/models/causal_lm_impl.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {

LoraAdapter LoraAdapter::read(const std::filesystem::path& name, const std::string& revision) {
  const std::filesystem::path folder = adapter_folder(name, revision);
  const auto config = folder / "adapter_config.json", weights = folder / "adapter_model.safetensors";
  const auto need = [&](const std::filesystem::path& file, const char* next) {
    if (std::filesystem::is_regular_file(file)) return;
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "a folder that peft's save_pretrained wrote: adapter_config.json, adapter_model.safetensors",
                 .got = cat("no ", file.string()),
                 .next = next});
  };
  need(config, std::filesystem::exists(folder / "config.json")
                   ? "that is a model: give it as the model, and beside it the folder of an adapter"
                   : "give the adapter's folder, or its name on the Hub (org/name)");
  need(weights, std::filesystem::exists(folder / "adapter_model.bin")
                    ? "save adapter_model.bin, whose pickle could run code, as safetensors: peft >= 0.6 does"
                    : "fetch the adapter again: it is not whole");
  const auto last = name.filename().empty() ? name.parent_path().filename() : name.filename();
  return {last.string(), folder, LoraConfig::read(config), SafetensorsFile(weights)};
}

void CausalLM::load_adapter(const std::filesystem::path& name, const std::string& revision) {
  load_adapter(LoraAdapter::read(name, revision));
}

void CausalLM::load_adapter(const LoraAdapter& adapter, bool untied) {
  const auto refuse = [](std::string expected, std::string got, std::string next) {
    throw Error({.kind = ErrorKind::kInvalidArgument, .wanted = expected, .got = got, .next = next});
  };
  if (lora_) refuse("one adapter at a time", cat(adapter.name(), " beside ", adapter_name_), "call unload_adapter()");
  if (training()) refuse("a model in evaluation mode for an adapter", "one in training", "call eval() first");
  if (device().is_meta()) refuse("a model with weights for an adapter", "one on the meta device", "load its weights");
  lora_ = std::make_shared<AppliedLora>(apply_lora(*this, adapter, untied));
  adapter_name_ = adapter.name();
  try {
    bind_again();
  } catch (...) {  // in strict mode: a layer that the adapter changes would stay stock
    unload_adapter();
    throw;
  }
}

void CausalLM::unload_adapter() {
  if (!lora_) return;
  lora_->remove();
  lora_.reset();
  adapter_name_.clear();
  bind_again();
}

void CausalLM::merge_and_unload() {
  if (!lora_) return;
  lora_->merge();
  lora_.reset();
  adapter_name_.clear();
  Linear& head = parts_->lm_head;
  if (parts_->config.tie_word_embeddings || !head.data().is_alias_of(parts_->trunk.embed_tokens.data()))
    return bind_again();
  head.weight.data = head.data().clone();  // untied for the adapter: a checkpoint needs both
  bind_again();
}

}  // namespace hotswap
