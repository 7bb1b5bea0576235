// Stock layers and kernels in turns: two child processes, of which one works while the other waits. Whatever else the
// machine does then slows both alike, and each has memory and speed of its own.
#include <cstdio>
#include <filesystem>

#include "hotswap/base/error.h"
#include "hotswap/base/json.h"
#include "hotswap/base/progress.h"
#include "hotswap/cli/child.h"
#include "hotswap/cli/demo/demo_parts.h"

namespace hotswap {
namespace {

std::vector<std::string> child_arguments(const DemoOptions& options, const std::string& step, bool kernels) {
  const ModelFlags& model = options.model;
  std::vector<std::string> arguments = {"demo", "--step", step};
  const auto add = [&](const char* flag, const std::string& value) {
    arguments.insert(arguments.end(), {flag, value});
  };
  add("--model", model.model);
  add("--device", model.device);
  add("--dtype", model.dtype);
  if (!model.attention.empty()) add("--attn-implementation", model.attention);
  add("--steps", cat(options.steps));
  add("--rows", cat(options.rows));
  add("--columns", cat(options.columns));
  add("--new-tokens", cat(options.new_tokens));
  add("--learning-rate", cat(options.learning_rate));
  if (!model.gguf_file.empty()) add("--gguf-file", model.gguf_file);
  if (kernels) arguments.emplace_back("--with-kernels");
  if (step == "train") {
    for (const std::string& file : options.data) add("--data", file);
    if (kernels) add("--save-to", (std::filesystem::path(options.output_dir) / "model").string());
  }
  return arguments;
}

class DemoChild {
 public:
  using OnEvent = std::function<void(const Json& event)>;

  // Back when it has loaded its model and waits: the next child then loads alone.
  DemoChild(const DemoOptions& options, const std::string& step, bool kernels, DemoVariant& variant)
      : step_(step),
        variant_(variant),
        child_(kSelf, self_words(child_arguments(options, step, kernels)), {.input = true}) {
    until("ready", [&](const Json& event) {
      if (event.at<std::string>("event") == "load") variant.kernels_bound = event.at<int64_t>("bound");
    });
  }

  DemoVariant& variant() { return variant_; }

  // One turn: what it says up to the event `last`, that included.
  void turn(const std::string& last, const OnEvent& on_event) {
    child_.say("go");
    until(last, on_event);
  }

  // To its end.
  void finish(const OnEvent& on_event) {
    while (const auto line = child_.line()) on_event(Json::parse(*line, "demo step"));
    ended(child_.wait());
  }

 private:
  void until(const std::string& last, const OnEvent& on_event) {
    while (const auto line = child_.line()) {
      const Json event = Json::parse(*line, "demo step");
      on_event(event);
      if (event.at<std::string>("event") == last) return;
    }
    const int status = child_.wait();
    ended(status == 0 ? 1 : status);
  }

  void ended(int status) const {
    if (status == 0) return;
    throw Error(
        {.kind = ErrorKind::kInternal,
         .wanted = cat("the demo's step `hotswap demo --step ", step_, "` to end well"),
         .got = cat("exit status ", status),
         .next = status == 137 ? "it was killed, perhaps out of memory: try --rows 1" : "its message is above"});
  }

  std::string step_;
  DemoVariant& variant_;
  Child child_;
};

void show_answer(const Json& event, DemoVariant& variant) {
  const auto kind = event.at<std::string>("event");
  if (kind == "text") {
    std::fputs(event.at<std::string>("piece").c_str(), stdout);
  } else if (kind == "answer") {
    variant.answers.push_back(event.at<std::string>("text"));
    variant.ids.push_back(event.at<std::vector<int64_t>>("ids"));
    variant.first_token_ms.push_back(event.at<double>("prefill_ms"));
    variant.decode_tokens_per_second.push_back(event.at<double>("decode_tokens_per_second"));
    std::printf("\n  (%zu tokens, first after %.0f ms, then %.1f tokens/s)\n", variant.ids.back().size(),
                variant.first_token_ms.back(), variant.decode_tokens_per_second.back());
  }
  std::fflush(stdout);
}

}  // namespace

void answer_in_turns(const DemoOptions& options, DemoVariant& stock, DemoVariant& kernels) {
  DemoChild first(options, "answer", false, stock), second(options, "answer", true, kernels);
  for (const std::string& prompt : demo_prompts()) {
    std::printf("\n> %s\n", prompt.c_str());
    for (DemoChild* child : {&first, &second}) {
      std::printf("%s: ", child->variant().name.c_str());
      child->turn("answer", [&](const Json& event) { show_answer(event, child->variant()); });
    }
  }
  for (DemoChild* child : {&first, &second}) child->finish([](const Json&) {});
}

void train_in_turns(const DemoOptions& options, DemoVariant& stock, DemoVariant& kernels) {
  DemoChild first(options, "train", false, stock), second(options, "train", true, kernels);
  Progress bar("fine-tune", options.steps);
  for (int64_t step = 0; step < options.steps; ++step) {
    for (DemoChild* child : {&first, &second}) {
      child->turn("step", [&](const Json& event) {
        if (event.at<std::string>("event") == "step") child->variant().losses.push_back(event.at<double>("loss"));
      });
    }
    char note[64];
    std::snprintf(note, sizeof note, "loss %.4f, kernels %.4f", stock.losses.back(), kernels.losses.back());
    bar.advance(1, note);
  }
  for (DemoChild* child : {&first, &second}) {
    child->finish([&](const Json& event) {
      if (event.at<std::string>("event") != "train") return;
      child->variant().train_tokens_per_second = event.at<double>("train_tokens_per_second");
      child->variant().peak_memory = event.at<int64_t>("peak_memory");
    });
  }
}

}  // namespace hotswap
