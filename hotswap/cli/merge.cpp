// merge: a model and a LoRA adapter become one checkpoint.
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/staged.h"
#include "hotswap/cli/flags/model_flags.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

struct MergeFlags {
  ModelFlags model;
  std::string out;
};

void check_merge_target(const fs::path& target) {
  if (!fs::exists(fs::symlink_status(target))) return;
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = "a folder to write that does not exist yet",
               .got = target.string(),
               .next = "name another one, or remove it"});
}

// As they are: the model writes of them what it reads.
void copy_as_they_are(const fs::path& from, const fs::path& to) {
  if (fs::is_regular_file(from / "generation_config.json"))
    write_file(to / "generation_config.json", read_file(from / "generation_config.json"));
  const auto templates = from / "additional_chat_templates";
  if (!fs::is_directory(templates)) return;
  fs::create_directories(to / "additional_chat_templates");
  for (const auto& entry : fs::directory_iterator(templates))
    write_file(to / "additional_chat_templates" / entry.path().filename(), read_file(entry.path()));
}

void merge_verb(const MergeFlags& flags) {
  fs::path out = fs::path(flags.out).lexically_normal();
  if (out.filename().empty()) out = out.parent_path();  // "out/"
  check_merge_target(out);                              // before the model is read
  const Staged folder(out);
  fs::create_directories(folder.path());
  const ModelFlags source = located(flags.model);
  if (fs::is_regular_file(source.model)) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "a model as safetensors to merge an adapter into",
                 .got = cat("the GGUF file ", source.model),
                 .next = "merge into the safetensors checkpoint that this GGUF was converted from, or use both "
                         "unmerged with --adapter"});
  }
  const auto model = load_model(source, {});
  const std::string name = model->adapter_name();
  model->merge_and_unload();
  model->save_pretrained(folder.path());
  copy_as_they_are(model->source(), folder.path());
  check_merge_target(out);
  folder.commit();
  std::printf("%s: %s with %s merged into its weights\n", out.c_str(), flags.model.model.c_str(), name.c_str());
}

}  // namespace

void add_merge(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "merge",
      "Write a model whose weights have a LoRA adapter of peft in them: a folder of safetensors with the model's\n"
      "config and tokenizer, as merge_and_unload() and save_pretrained() write it. Quantised weights become plain.");
  auto flags = std::make_shared<MergeFlags>();
  verb->add_option("--model,model", flags->model.model, "Folder of the model, or org/name on the Hub")
      ->required()
      ->type_name("DIR|ID");
  verb->add_option("--adapter", flags->model.adapter, "The adapter: its folder, or org/name on the Hub")
      ->required()
      ->type_name("DIR|ID");
  verb->add_option("--out,out", flags->out, "Folder to write; it must not exist yet")->required()->type_name("DIR");
  verb->add_option("--revision", flags->model.revision, "Branch, tag or commit of a model of the Hub")
      ->capture_default_str();
  verb->add_option("--dtype", flags->model.dtype, "float32, bfloat16, float16, or auto: as in config.json")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16"}))
      ->capture_default_str();
  verb->callback([flags] { merge_verb(*flags); });
}

}  // namespace hotswap
