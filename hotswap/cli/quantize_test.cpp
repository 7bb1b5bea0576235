// hotswap quantize as a script runs it.
#include <map>

#include "hotswap/cli/test_program.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using namespace test_support;

class Quantize : public Cli {
 protected:
  static fs::path model() { return made_data("models/quantize/quantize_models.py") / "llama"; }
  std::string out(const std::string& name) const { return file(name).string(); }
};

TEST_F(Quantize, WritesAFileThatGenerateAndScoreRead) {
  write_file(file("text"), "You may reproduce and distribute copies of the Work.");
  const Outcome text =
      run("quantize " + model().string() + " " + out("x.gguf") + " --format q4_k_m --text " + out("text"));
  ASSERT_EQ(text.status, 0) << text.err;
  for (const char* part :
       {"relative RMS", "model.embed_tokens", "model.layers.2", "Q4_K", "Q6_K", "x.gguf: ", "loss ", ", before "}) {
    EXPECT_NE(text.out.find(part), std::string::npos) << part << "\n" << text.out;
  }
  const auto json = run_json("quantize " + model().string() + " " + out("x.gguf") +
                             " --format q8_0 --replace --json --max-tokens 12 --text " + out("text"));
  EXPECT_EQ(keys(json), (Keys{"format", "out", "bytes", "bytes_before", "left_plain", "tensors", "loss"}));
  EXPECT_EQ(keys(json["loss"]), (Keys{"after", "before", "tokens"}));
  EXPECT_EQ(json["loss"]["tokens"], 12);
  const double before = json["loss"]["before"].get<double>(), after = json["loss"]["after"].get<double>();
  EXPECT_NEAR(after, before, .004 * before);  // five times what it is: random weights lose 140 nats a token
  EXPECT_NE(after, before);
  EXPECT_EQ(json["tensors"][0]["type"], "Q8_0");
  EXPECT_EQ(keys(json["tensors"][0]), (Keys{"name", "type", "shape", "quantized", "relative_rms"}));
  EXPECT_LT(json["bytes"].get<double>(), .6 * json["bytes_before"].get<double>());
  const auto score = run_json("score " + out("x.gguf") + " --json --max-tokens 12 --text " + out("text"));
  EXPECT_NEAR(score["loss"].get<double>(), json["loss"]["after"].get<double>(), 1e-6);
  const auto generated =
      run_json("generate " + out("x.gguf") + " --prompt 'You may' --max-new-tokens 3 --use-kernels --json");
  EXPECT_EQ(generated["token_ids"].size(), 3U);
}

TEST_F(Quantize, WritesAFolderForTransformers) {
  const auto json = run_json("quantize " + model().string() + " " + out("int4") + " --format int4_g128 --json");
  EXPECT_FALSE(json.contains("loss"));
  const auto config = nlohmann::json::parse(read_file(file("int4") / "config.json"));
  EXPECT_EQ(config["quantization_config"]["quant_method"], "compressed-tensors");
  EXPECT_EQ(run("generate " + out("int4") + " --prompt 'You may' --max-new-tokens 3").status, 0);
}

// A layer's rows in a report, and how many run a kernel.
using Counts = std::map<std::string, std::pair<int, int>>;
Counts counts_of(const nlohmann::json& layers) {
  Counts counts;
  for (const auto& row : layers) {
    auto& [all, bound] = counts[row["layer"]];
    ++all;
    if (row["package"].is_string() && row["package"] != "") ++bound;
  }
  return counts;
}

TEST_F(Quantize, KernelizeReportsWhatGenerateRuns) {
  ASSERT_EQ(run("quantize " + model().string() + " " + out("x.gguf") + " --format q8_0").status, 0);
  for (const char* packed : {"auto", "off", "on"}) {
    const std::string flags = out("x.gguf") + " --packed " + packed + " --json";
    const Counts generated =
        counts_of(run_json("generate " + flags + " --use-kernels --prompt 'You may' --max-new-tokens 1")["kernels"]);
    EXPECT_EQ(counts_of(run_json("kernelize " + flags)["layers"]), generated) << packed;
    EXPECT_EQ(generated.contains("PackedLinear"), std::string(packed) != "off");
  }
  const Counts training = counts_of(run_json("kernelize " + out("x.gguf") + " --mode TRAINING --json")["layers"]);
  EXPECT_FALSE(training.contains("PackedLinear")) << "quantised weights are not trained";
}

TEST_F(Quantize, KernelsAreBoundOnceAsItLoads) {
  ASSERT_EQ(run("quantize " + model().string() + " " + out("x.gguf") + " --format q8_0").status, 0);
  write_file(file("norms.json"),
             R"({"kernel_mapping": {"RMSNorm": "hotswap/norm:RMSNorm"}, "inherit_mapping": false})");
  for (const std::string& kernels : {std::string("--use-kernels"), "--kernel-config " + out("norms.json")}) {
    const Outcome outcome = run_with("env HOTSWAP_LOG_LEVEL=info ",
                                     "generate " + out("x.gguf") + " --prompt 'You may' --max-new-tokens 1 " + kernels);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const std::string line = "info: kernelize INFERENCE: ";
    const size_t first = outcome.err.find(line);
    ASSERT_NE(first, std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find(line, first + 1), std::string::npos) << outcome.err;
  }
}

TEST_F(Quantize, SaysWhatIsWrong) {
  const auto fails = [&](const std::string& arguments, int status, const char* part) {
    const Outcome outcome = run("quantize " + arguments);
    EXPECT_EQ(outcome.status, status) << arguments;
    EXPECT_NE((outcome.out + outcome.err).find(part), std::string::npos) << arguments << "\n" << outcome.err;
  };
  const std::string at = model().string() + " ";
  fails(at + out("x.gguf") + " --format q3", 2, "q8_0");
  fails(at + out("x.gguf"), 2, "--format is required");
  fails(at + "--format q8_0", 2, "--out is required");
  fails(at + out("x") + " --format q8_0", 1, "ends in .gguf");
  fails(at + out("x.gguf") + " --format q8_0 --text " + out("none"), 1, "none");
  fails(out("none") + " " + out("x.gguf") + " --format q8_0", 1, "none");
  write_file(file("x.gguf"), "mine");
  fails(at + out("x.gguf") + " --format q8_0", 1, "--replace");
  EXPECT_EQ(read_file(file("x.gguf")), "mine");
}

}  // namespace
}  // namespace hotswap
