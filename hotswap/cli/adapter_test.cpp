// --adapter and merge, as scripts use them: a LoRA adapter of peft beside a model and in it (models/lora_oracle.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "hotswap/cli/test_program.h"
#include "hotswap/models/formats/safetensors.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::made_data;
using test_support::Outcome;
using OutJson = nlohmann::json;

class CliAdapter : public test_support::Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    if (const auto why = test_support::lacking_imports("peft, transformers")) GTEST_SKIP() << *why;
    folder_ = made_data("models/lora_oracle.py") / "llama_all_linear";
    model_ = (folder_ / "model").string();
    adapter_ = " --adapter " + (folder_ / "adapter").string();
    const at::Tensor ids = SafetensorsFile(folder_ / "expected.safetensors").tensor("greedy");
    const auto* first = ids.const_data_ptr<int64_t>();
    const auto* end = first + ids.numel();
    const auto* stop =
        std::find(first + 5, end, 2);  // generation_config.json's eos_token_id, which peft's did not have
    expected_.assign(first + 5, std::min(end, stop + 1));
    write_file(file("prompt.json"), OutJson(std::vector<int64_t>(first, first + 5)).dump());
  }
  OutJson generated(const std::string& model) const {
    return run_json("generate " + model + " --ids " + file("prompt.json").string() + " --json --max-new-tokens " +
                    std::to_string(expected_.size()))["token_ids"];
  }
  size_t files_here() const { return std::distance(fs::directory_iterator(file("")), fs::directory_iterator()); }

  fs::path folder_;
  std::string model_, adapter_;
  std::vector<int64_t> expected_;  // what peft generates
};

TEST_F(CliAdapter, GenerateAnswersAsPeftDoes) {
  EXPECT_EQ(generated(model_ + adapter_), OutJson(expected_));
  EXPECT_EQ(generated(model_ + adapter_ + " --use-kernels"), OutJson(expected_));
  EXPECT_NE(generated(model_), OutJson(expected_));
}

TEST_F(CliAdapter, KernelizeSaysWhatStaysStock) {
  const Outcome outcome = run("kernelize " + model_ + adapter_);
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  expect_has(outcome.out, {"DecoderLayer", "LoRA adapter"});
  EXPECT_EQ(run("kernelize " + model_).out.find("LoRA"), std::string::npos);
}

TEST_F(CliAdapter, MergedNeedsNoAdapter) {
  const fs::path model = file("model");
  fs::copy(folder_ / "model", model, fs::copy_options::recursive);
  write_file(model / "chat_template.jinja", "{{ messages }}");
  const auto out = file("merged");
  const Outcome outcome = run("merge " + model.string() + adapter_ + " " + out.string());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  expect_has(outcome.out, {out.string(), "adapter"});
  EXPECT_EQ(generated(out.string()), OutJson(expected_));
  for (const char* name : {"config.json", "model.safetensors", "generation_config.json", "chat_template.jinja"})
    EXPECT_TRUE(fs::exists(out / name)) << name;
  EXPECT_EQ(read_file(out / "generation_config.json"), read_file(model / "generation_config.json"));
  // what exists is left as it is
  const Outcome again = run("merge " + model_ + adapter_ + " " + out.string());
  EXPECT_EQ(again.status, 1);
  expect_has(again.err, {"does not exist yet", out.string()});
}

TEST_F(CliAdapter, AFailedMergeLeavesNothing) {
  fs::copy(folder_ / "adapter", file("broken"));
  write_file(file("broken") / "adapter_config.json", R"({"peft_type": "IA3"})");
  EXPECT_EQ(run("env").status, 0);  // stdin, stdout and stderr are there
  const size_t before = files_here();
  const Outcome outcome = run("merge " + model_ + " --adapter " + file("broken").string() + " " + file("out").string());
  EXPECT_EQ(outcome.status, 1);
  expect_has(outcome.err, {"IA3"});
  EXPECT_EQ(files_here(), before);
}

TEST_F(CliAdapter, AnotherTokenizerIsReported) {
  fs::copy(folder_ / "adapter", file("with_template"));
  write_file(file("with_template") / "chat_template.jinja", "{{ messages }}");
  const Outcome outcome = run("kernelize " + model_ + " --adapter " + file("with_template").string());
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  expect_has(outcome.err, {"chat_template.jinja", "which is used"});
}

}  // namespace
}  // namespace hotswap
