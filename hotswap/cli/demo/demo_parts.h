// The demo's own pieces: what its child processes run, and what the parent shows of it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "hotswap/cli/flags/model_flags.h"

namespace hotswap {

struct DemoOptions {
  ModelFlags model;
  std::vector<std::string> data;  // text files to fine-tune on
  std::string output_dir = "hotswap-demo";
  int64_t steps = 16, rows = 2, columns = 192, new_tokens = 48;
  double learning_rate = 2e-5;
  bool kernels = false;  // in a child: which variant it runs
  std::string step;      // in a child: "answer" or "train"
  std::string save_to;   // in a child: the tuned model's folder, empty: not saved
};

// A child's work. Each event is one line of JSON on stdout: {"event": "load"|"ready"|"text"|"answer"|"step"|"train",
// ...}. After "ready", which comes before each prompt and each step, it waits for a line on stdin.
void demo_answer(const DemoOptions& options);
void demo_train(const DemoOptions& options);

// What the parent keeps of one variant.
struct DemoVariant {
  std::string name;
  std::vector<std::string> answers;
  std::vector<std::vector<int64_t>> ids;
  std::vector<double> first_token_ms, decode_tokens_per_second;  // one a prompt
  std::vector<double> losses;
  double train_tokens_per_second = 0;
  int64_t peak_memory = 0;
  int64_t kernels_bound = 0;
};

// The parent's: both variants, one of them at work at a time.
void answer_in_turns(const DemoOptions& options, DemoVariant& stock, DemoVariant& kernels);
void train_in_turns(const DemoOptions& options, DemoVariant& stock, DemoVariant& kernels);

const std::vector<std::string>& demo_prompts();
std::string demo_table(const DemoVariant& stock, const DemoVariant& kernels);
std::string demo_plot(const std::string& title, const DemoVariant& stock, const DemoVariant& kernels);

}  // namespace hotswap
