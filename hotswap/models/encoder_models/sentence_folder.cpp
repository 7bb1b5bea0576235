#include "hotswap/models/encoder_models/sentence_folder.h"

#include "hotswap/hub/hub.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {

std::filesystem::path sentence_folder(const std::filesystem::path& name, const std::string& revision) {
  const std::filesystem::path folder = model_folder(name, revision);
  if (folder == name) return folder;  // of this machine, or nothing that a Hub has
  Hub hub(HubOptions::from_env());
  return hub.snapshot({RepoType::kModel, name.string()}, revision,
                      {.allow = {"modules.json", "config_sentence_transformers.json", "sentence_*_config.json",
                                 "*/config.json", "*/model.safetensors"}});
}

}  // namespace hotswap
