// `hotswap demo`: a real model, stock and swapped, side by side. Each variant runs in a process of its own, so that its
// memory and its speed are its own.
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/progress.h"
#include "hotswap/cli/child.h"
#include "hotswap/cli/demo/demo_parts.h"
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

std::vector<std::string> child_arguments(const DemoOptions& options, const char* step, bool kernels) {
  std::vector<std::string> arguments = {"demo",
                                        "--step",
                                        step,
                                        "--model",
                                        options.model.model,
                                        "--device",
                                        options.model.device,
                                        "--dtype",
                                        options.model.dtype,
                                        "--attn-implementation",
                                        options.model.attention,
                                        "--steps",
                                        cat(options.steps),
                                        "--rows",
                                        cat(options.rows),
                                        "--columns",
                                        cat(options.columns),
                                        "--new-tokens",
                                        cat(options.new_tokens),
                                        "--learning-rate",
                                        cat(options.learning_rate)};
  if (!options.model.gguf_file.empty()) arguments.insert(arguments.end(), {"--gguf-file", options.model.gguf_file});
  if (kernels) arguments.emplace_back("--with-kernels");
  if (std::string(step) == "train") {
    for (const std::string& file : options.data) arguments.insert(arguments.end(), {"--data", file});
    if (kernels) arguments.insert(arguments.end(), {"--save-to", (fs::path(options.output_dir) / "model").string()});
  }
  return arguments;
}

void run_step(const std::vector<std::string>& arguments, const std::function<void(const Json&)>& on_event) {
  const int status = run_self(arguments, [&](const std::string& line) { on_event(Json::parse(line, "demo step")); });
  if (status != 0) {
    throw Error(
        {.wanted =
             cat("the demo's step `hotswap ", arguments[0], " ", arguments[1], " ", arguments[2], "` to end well"),
         .got = cat("exit status ", status),
         .next = status == 137 ? "it was killed, perhaps for want of memory: try --rows 1" : "its message is above"});
  }
}

void answer_prompts(const DemoOptions& options, bool kernels, DemoVariant& variant) {
  run_step(child_arguments(options, "answer", kernels), [&](const Json& event) {
    const auto kind = event.at<std::string>("event");
    if (kind == "load") {
      variant.kernels_bound = event.at<int64_t>("bound");
    } else if (kind == "prompt") {
      std::printf("\n> %s\n", event.at<std::string>("text").c_str());
    } else if (kind == "text") {
      std::fputs(event.at<std::string>("piece").c_str(), stdout);
    } else if (kind == "answer") {
      variant.answers.push_back(event.at<std::string>("text"));
      variant.ids.push_back(event.at<std::vector<int64_t>>("ids"));
      variant.first_token_ms.push_back(event.at<double>("prefill_ms"));
      variant.decode_tokens_per_second.push_back(event.at<double>("decode_tokens_per_second"));
      std::printf("\n  (%lld tokens, first after %.0f ms, then %.1f tokens/s)\n",
                  static_cast<long long>(variant.ids.back().size()), variant.first_token_ms.back(),
                  variant.decode_tokens_per_second.back());
    }
    std::fflush(stdout);
  });
}

void train_variant(const DemoOptions& options, bool kernels, DemoVariant& variant) {
  Progress bar("fine-tune, " + variant.name, options.steps);
  run_step(child_arguments(options, "train", kernels), [&](const Json& event) {
    const auto kind = event.at<std::string>("event");
    if (kind == "step") {
      variant.losses.push_back(event.at<double>("loss"));
      char note[64];
      std::snprintf(note, sizeof note, "loss %.4f", variant.losses.back());
      bar.advance(1, note);
    } else if (kind == "train") {
      variant.train_tokens_per_second = event.at<double>("train_tokens_per_second");
      variant.peak_memory = event.at<int64_t>("peak_memory");
    }
  });
}

void heading(int number, const std::string& text) {
  std::printf("\n[%d/6] %s\n", number, text.c_str());
  std::fflush(stdout);
}

void print_report(const DemoOptions& options) {
  std::vector<std::string> arguments = {"kernelize", "--model", options.model.model, "--dtype", options.model.dtype};
  if (!options.model.gguf_file.empty()) arguments.insert(arguments.end(), {"--gguf-file", options.model.gguf_file});
  if (run_self(arguments, [](const std::string& line) { std::printf("%s\n", line.c_str()); }) != 0) {
    throw Error({.wanted = "the kernel report",
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
  heading(2, "answers, stock layers");
  answer_prompts(options, false, stock);
  heading(3, "answers, swapped layers");
  answer_prompts(options, true, kernels);
  heading(4, cat("fine-tuning, stock layers: ", options.steps, " steps of ", options.rows, " x ", options.columns,
                 " tokens of ", options.data.size(), " files"));
  train_variant(options, false, stock);
  heading(5, "fine-tuning, swapped layers: same seed, same data");
  train_variant(options, true, kernels);

  heading(6, "side by side");
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
    throw Error({.wanted = cat("the project's documentation in ", source),
                 .got = "no .md file there",
                 .next = "name text files by --data"});
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
  auto* model = verb->add_option("--model", options->model.model, "Folder of the model")->type_name("DIR");
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
  verb->add_option("--steps", options->steps, "Training steps")->check(CLI::PositiveNumber)->capture_default_str();
  verb->add_option("--rows", options->rows, "Rows of a batch")->check(CLI::PositiveNumber)->capture_default_str();
  verb->add_option("--columns", options->columns, "Tokens of a row")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  verb->add_option("--new-tokens", options->new_tokens, "Tokens of an answer, at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  verb->add_option("--learning-rate", options->learning_rate, "Of AdamW")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  // How the demo calls itself.
  verb->add_option("--step", options->step)->check(CLI::IsMember({"answer", "train"}))->group("");
  verb->add_flag("--with-kernels", options->kernels)->group("");
  verb->add_option("--save-to", options->save_to)->group("");
  verb->callback([options, gguf, source] { demo_verb(*options, *gguf, source); });
}

}  // namespace hotswap
