// `hotswap demo`: a real model, stock and swapped, side by side.
#include <algorithm>
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/cli/child.h"
#include "hotswap/cli/demo/demo_parts.h"
#include "hotswap/cli/flags/value_checks.h"
#include "hotswap/cli/verbs.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> documents_of(const fs::path& source) {
  std::vector<std::string> files;
  for (const fs::path& folder : {source, source / "docs"}) {
    if (!fs::is_directory(folder)) continue;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().extension() == ".md") files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

void heading(int number, const std::string& text) {
  std::printf("\n[%d/4] %s\n", number, text.c_str());
  std::fflush(stdout);
}

void print_report(const DemoOptions& options) {
  std::vector<std::string> arguments = {"kernelize", "--model", options.model.model, "--dtype", options.model.dtype};
  if (!options.model.gguf_file.empty()) arguments.insert(arguments.end(), {"--gguf-file", options.model.gguf_file});
  if (run_self(arguments, [](const std::string& line) { std::printf("%s\n", line.c_str()); }) != 0) {
    throw Error({.kind = ErrorKind::kInternal,
                 .wanted = "the kernel report",
                 .got = "an error, above",
                 .next = "follow that message, then run the demo again"});
  }
}

std::string same_text(const DemoVariant& stock, const DemoVariant& kernels) {
  for (size_t prompt = 0; prompt < stock.ids.size(); ++prompt) {
    const auto& a = stock.ids[prompt];
    const auto& b = kernels.ids[prompt];
    if (a == b) continue;
    const auto fork = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
    return cat("no: prompt ", prompt + 1, " forks at token ", fork + 1,
               ", where two tokens are as good within rounding");
  }
  return "yes, token for token";
}

void demo_parent(const DemoOptions& options) {
  fs::create_directories(options.output_dir);
  DemoVariant stock{.name = "stock"}, kernels{.name = "kernels"};
  heading(1, "which kernel each layer runs");
  print_report(options);
  heading(2, "answers, by stock layers and by kernels");
  answer_in_turns(options, stock, kernels);
  heading(3, cat("fine-tuning, stock layers and kernels in alternating steps: ", options.steps, " steps of ",
                 options.rows, " x ", options.columns, " tokens of ", options.data.size(), " files"));
  train_in_turns(options, stock, kernels);

  heading(4, "side by side");
  const std::string table = demo_table(stock, kernels);
  const fs::path folder = options.output_dir;
  write_file(folder / "demo.svg", demo_plot("hotswap demo: stock layers and kernels", stock, kernels));
  write_file(folder / "demo.txt", table);
  std::printf("%s\nsame answers: %s\n", table.c_str(), same_text(stock, kernels).c_str());
  std::printf("plot         %s\ntuned model  %s (a Hugging Face folder)\n", (folder / "demo.svg").c_str(),
              (folder / "model").c_str());
}

void demo_verb(DemoOptions options, const std::string& gguf, const std::string& source) {
  if (!gguf.empty()) options.model.model = gguf;
  if (options.model.model.empty()) {
    throw usage_error("demo: --model DIR or --gguf FILE is required (./x demo fetches a model and names it)");
  }
  options.model = located(options.model);
  if (options.step == "answer") return demo_answer(options);
  if (options.data.empty()) options.data = documents_of(source);
  if (options.data.empty()) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("the project's documentation in ", source),
                 .got = "no .md file there",
                 .next = "pass text files with --data"});
  }
  if (options.step == "train") return demo_train(options);
  demo_parent(options);
}

}  // namespace

void add_demo(CLI::App& app, const std::string& source) {
  auto* verb = app.add_subcommand(
      "demo",
      "Answer prompts and fine-tune a real model, stock and swapped; print a table, write a plot and the model");
  auto options = std::make_shared<DemoOptions>();
  options->model.dtype = "float32";
  auto gguf = std::make_shared<std::string>();
  auto* model = verb->add_option("--model,model", options->model.model, "Folder of the model")->type_name("DIR");
  verb->add_option("--gguf-file", options->model.gguf_file, "Weights: this GGUF file of the folder")->type_name("FILE");
  verb->add_option("--gguf", *gguf, "A GGUF file: weights, config and tokenizer from it")
      ->type_name("FILE")
      ->excludes(model);
  verb->add_option("--device", options->model.device, "cpu, cuda, cuda:N, or auto")->capture_default_str();
  verb->add_option("--dtype", options->model.dtype, "float32 or bfloat16")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  verb->add_option("--attn-implementation", options->model.attention, "sdpa or eager")->capture_default_str();
  verb->add_option("--output-dir", options->output_dir, "Where table, plot and tuned model go")->capture_default_str();
  verb->add_option("--data", options->data, "Text files to fine-tune on; default the project's own documentation")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->check(CLI::ExistingFile);
  verb->add_option("--steps", options->steps, "Training steps")->check(above_zero())->capture_default_str();
  verb->add_option("--rows", options->rows, "Rows of a batch")->check(above_zero())->capture_default_str();
  verb->add_option("--columns", options->columns, "Tokens of a row")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  verb->add_option("--new-tokens", options->new_tokens, "Tokens of an answer, at most")
      ->check(above_zero())
      ->capture_default_str();
  verb->add_option("--learning-rate", options->learning_rate, "Of AdamW")->check(above_zero())->capture_default_str();
  // How the demo calls itself.
  verb->add_option("--step", options->step)->check(CLI::IsMember({"answer", "train"}))->group("");
  verb->add_flag("--with-kernels", options->kernels)->group("");
  verb->add_option("--save-to", options->save_to)->group("");
  verb->callback([options, gguf, source] { demo_verb(*options, *gguf, source); });
}

}  // namespace hotswap
