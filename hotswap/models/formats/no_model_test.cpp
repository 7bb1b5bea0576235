// Folders of every kind that people give as a model: each entry point names it, and what to pass instead.
#include "hotswap/models/formats/no_model.h"

#include <gtest/gtest.h>

#include "hotswap/base/test_support.h"
#include "hotswap/chat/chat_template.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/test_files.h"
#include "hotswap/tokenizers/tokenizer.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;

struct Mistake {
  std::vector<std::pair<const char*, const char*>> files;  // name, content
  std::vector<std::string> parts;                          // of the message; FOLDER stands for the path
};

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all = {
      {{{"adapter_config.json", R"({"peft_type": "LORA", "base_model_name_or_path": "acme/base"})"},
        {"adapter_model.safetensors", ""}},
       {"FOLDER, the LoRA adapter of acme/base", "acme/base --adapter FOLDER"}},
      {{{"adapter_config.json", "{"}}, {"the adapter of a model that it does not name", "MODEL --adapter FOLDER"}},
      {{{"build.toml", ""}}, {"a kernel package", "--kernel LAYER=FOLDER:LAYER"}},
      {{{"build/torch211-cpu/metadata.json", "{}"}}, {"a kernel package", "--use-local-kernel"}},
      {{{"m-Q4_K_M.gguf", ""}, {"m-Q8_0.gguf", ""}},
       {"2 GGUF files: m-Q4_K_M.gguf, m-Q8_0.gguf", "FOLDER/m-Q4_K_M.gguf, or", "--gguf-file m-Q4_K_M.gguf"}},
      {{{"m-00001-of-00002.gguf", ""}, {"m-00002-of-00002.gguf", ""}, {"mmproj-m.gguf", ""}},
       {"the GGUF file m-00001-of-00002.gguf", "give FOLDER/m-00001-of-00002.gguf"}},
      {{{"checkpoint-900/config.json", "{}"}, {"checkpoint-1000/config.json", "{}"}, {"trainer_state.json", "{}"}},
       {"the parent of models: checkpoint-900, checkpoint-1000", "the newest is FOLDER/checkpoint-1000"}},
      {{{"checkpoint-5/adapter_config.json", "{}"}},
       {"the parent of adapters: checkpoint-5", "MODEL --adapter FOLDER/checkpoint-5"}},
      {{{"snapshots/abc/config.json", "{}"}, {"refs/main", "abc"}},
       {"the parent of models: abc", "give FOLDER/snapshots/abc"}},
      {{{"data/train-00000.parquet", ""}, {"README.md", ""}}, {"a dataset: data/train-00000.parquet", "--text"}},
      {{{"dataset_info.json", "{}"}}, {"a dataset: dataset_info.json"}},
      {{{"model_index.json", "{}"}, {"unet/config.json", "{}"}}, {"a pipeline of diffusers"}},
      {{{"model.safetensors", ""}}, {"weights without config.json: model.safetensors", "copy config.json"}},
  };
  return all;
}

void write(const fs::path& folder, const Mistake& mistake) {
  for (const auto& [name, content] : mistake.files) {
    fs::create_directories((folder / name).parent_path());
    put_file(folder / name, content);
  }
}

std::string shown_part(std::string part, const fs::path& folder) {
  for (size_t at; (at = part.find("FOLDER")) != part.npos;) part.replace(at, 6, folder.string());
  return part;
}

TEST(NoModel, IsNamedByWhateverReadsAModel) {
  for (const Mistake& mistake : mistakes()) {
    const TempFolder folder;
    write(folder.path(), mistake);
    const std::pair<const char*, std::string> messages[] = {
        {"model", message_of([&] { AutoModelForCausalLM::from_pretrained(folder.path()); })},
        {"random weights", message_of([&] { AutoModelForCausalLM::from_random(folder.path(), {}); })},
        {"tokenizer", message_of([&] { Tokenizer::from_pretrained(folder.path()); })},
        {"chat template", message_of([&] { ChatTemplate::from_pretrained(folder.path()); })}};
    for (const auto& [reader, message] : messages) {
      for (const std::string& part : mistake.parts)
        expect_has(cat(reader, ": ", message), {shown_part(part, folder.path())});
    }
  }
}

TEST(NoModel, NamesTheFolderOfAFile) {
  const TempFolder folder;
  for (const char* name : {"config.json", "model.safetensors"}) put_file(folder.path() / name, "{}");
  for (const char* name : {"config.json", "model.safetensors"}) {
    const fs::path file = folder.path() / name;
    const std::string next = cat("give the folder: ", folder.path().string());
    expect_has(message_of([&] { AutoModelForCausalLM::from_pretrained(file); }), {next});
    expect_has(message_of([&] { Tokenizer::from_pretrained(file); }), {next});
  }
}

TEST(NoModel, LeavesModelsAndUnknownFoldersToTheirReaders) {
  const TempFolder folder;
  refuse_no_model(folder.path());
  refuse_no_model(folder.path() / "absent");
  put_file(folder.path() / "config.json", "{}");
  put_file(folder.path() / "train.jsonl", "");
  refuse_no_model(folder.path());
}

}  // namespace
}  // namespace hotswap
