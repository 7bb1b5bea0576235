#include <cstdio>

#include "hotswap/cli/verbs.h"
#include "hotswap/models/model_folder.h"

namespace hotswap {
namespace {

struct Flags {
  std::string model, revision = "main", gguf_file;
};

}  // namespace

void add_download(CLI::App& app) {
  auto* verb = app.add_subcommand("download", "Fetch a model of the Hub, and print the folder where it lies");
  auto flags = std::make_shared<Flags>();
  verb->add_option("model", flags->model, "org/name: configuration, tokenizer and weights as safetensors")->required();
  verb->add_option("--revision", flags->revision, "Branch, tag or commit")->capture_default_str();
  verb->add_option("--gguf-file", flags->gguf_file, "This file instead of the safetensors");
  verb->callback([flags] {
    const auto gguf = flags->gguf_file.empty() ? std::nullopt : std::optional(flags->gguf_file);
    std::printf("%s\n", model_folder(flags->model, flags->revision, gguf).c_str());
  });
}

}  // namespace hotswap
