// An adapter read from its folder, and a model's own; what its tensors change is lora_plan.cpp's.
#include "hotswap/models/lora.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/models/causal_lm_impl.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/model_folder.h"
#include "hotswap/models/tokenizer_files.h"
#include "hotswap/models/trained.h"

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
  const Json json = Json::read(config);
  const SafetensorsFile file(weights);
  std::map<std::string, Tensor> tensors;
  for (const std::string& tensor : file.names()) tensors[tensor] = file.tensor(tensor);
  return {last.string(), weights.string(), json, std::move(tensors)};
}

LoraConfig LoraAdapter::config() const { return LoraConfig::from_json(json_, /*fresh=*/false); }

namespace {

[[noreturn]] void refuse_adapter(std::string expected, std::string got, std::string next) {
  throw Error({.kind = ErrorKind::kInvalidArgument, .wanted = expected, .got = got, .next = next});
}

}  // namespace

void CausalLM::check_takes_adapter(const std::string& name) const {
  if (lora_) refuse_adapter("one adapter at a time", cat(name, " beside ", adapter_name_), "call unload_adapter()");
  if (!row_adapters_.empty()) {
    refuse_adapter("a model without adapters of rows for an adapter of all rows",
                   cat(name, " beside ", row_adapters_.front().name), "load the model again");
  }
  if (device().is_meta())
    refuse_adapter("a model with weights for an adapter", "one on the meta device", "load its weights");
}

void CausalLM::load_adapter(const std::filesystem::path& name, const std::string& revision, bool is_trainable) {
  load_adapter(LoraAdapter::read(name, revision), {.trains = is_trainable});
}

void CausalLM::load_adapter(const LoraAdapter& adapter, const LoraUse& use) {
  check_takes_adapter(adapter.name());
  if (training() && !use.trains) {
    refuse_adapter("a model in evaluation mode for an adapter", "one in training",
                   "call eval() first, or load the adapter as one that trains (is_trainable)");
  }
  lora_ = std::make_shared<AppliedLora>(apply_lora(*this, adapter, use));
  adapter_name_ = adapter.name();
  try {
    bind_again();
  } catch (...) {  // in strict mode: a layer that the adapter changes would stay stock
    unload_adapter();
    throw;
  }
}

void CausalLM::add_adapter(const LoraConfig& config, uint64_t seed) {
  check_takes_adapter("a new one");
  load_adapter(LoraAdapter::fresh(*this, config, seed), {.trains = true});
}

int64_t CausalLM::add_row_adapter(const LoraAdapter& adapter, const LoraUse& use) {
  if (lora_ || device().is_meta()) check_takes_adapter(adapter.name());
  if (training() || use.trains) {
    refuse_adapter("a model in evaluation mode, and an adapter that does not train, for an adapter of rows",
                   training() ? "a model in training" : "an adapter that trains", "call eval(), or load_adapter()");
  }
  const auto number = static_cast<int64_t>(row_adapters_.size());
  row_adapters_.push_back({adapter.name(), apply_lora_to_rows(*this, adapter, use, number)});
  bind_again();
  return number;
}

void CausalLM::check_row_adapters(const ForwardArguments& a) const {
  if (a.row_adapters.empty()) return;
  const auto last = static_cast<int64_t>(row_adapters_.size()) - 1;
  const auto [least, most] = std::minmax_element(a.row_adapters.begin(), a.row_adapters.end());
  if (*least < RowAdapters::kNone || *most > last) {
    refuse_adapter(cat("indices of adapters up to ", last, ", or -1"), join(a.row_adapters),
                   "give what add_row_adapter() returned");
  }
  if (training() || at::GradMode::is_enabled()) {
    refuse_adapter("a forward without gradients for rows with adapters", training() ? "a model in training" : "one",
                   "call eval(), and run it under at::NoGradGuard or c10::InferenceMode");
  }
}

bool CausalLM::trains_adapter() const { return lora_ && lora_->trains(); }

void CausalLM::save_adapter(const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  lora_->save(folder);
  if (!source_.empty()) copy_tokenizer_files(source_, folder);
}

void CausalLM::restore_adapter(const std::filesystem::path& folder) {
  if (!trains_adapter()) {
    refuse_adapter("a model whose adapter trains", lora_ ? "one whose adapter only computes" : "one without an adapter",
                   "call add_adapter(), or load_adapter() with is_trainable");
  }
  lora_->restore(folder);
}

void CausalLM::each_trained(const TensorVisitor& visit) { hotswap::each_trained(*this, visit); }

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
