// Where a model's files lie: a path of this machine as it is, or the name of a repository of the Hub, fetched into the
// cache that Python's huggingface_hub uses too.
//
//   model_folder("models/SmolLM2-135M")                      that folder
//   model_folder("HuggingFaceTB/SmolLM2-135M-Instruct")      ~/.cache/huggingface/hub/models--.../snapshots/<commit>
//   model_folder("org/name:Q4_K_M")                          the GGUF file of that quantisation there (gguf_choice.h)
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace hotswap {

// Only what this host reads is fetched: configuration, tokenizer, and the weights as safetensors, or `gguf_file` alone.
// What exists on this machine is never looked up. Error (HubError from the Hub) where the name is neither.
std::filesystem::path model_folder(const std::filesystem::path& name, const std::string& revision = "main",
                                   const std::optional<std::string>& gguf_file = std::nullopt);

// The same for a LoRA adapter of peft.
std::filesystem::path adapter_folder(const std::filesystem::path& name, const std::string& revision = "main");

// The same for a tokenizer alone: no weights are fetched, but for a `gguf_file`, which may hold it.
std::filesystem::path tokenizer_folder(const std::filesystem::path& name, const std::string& revision = "main",
                                       const std::optional<std::string>& gguf_file = std::nullopt);

}  // namespace hotswap
