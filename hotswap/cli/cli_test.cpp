// The program as scripts use it: exit statuses, stderr, and the exact keys of its JSON. Runs bin/hotswap beside this
// test; what needs a model takes a small one that is made.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "hotswap/cli/print/plot.h"
#include "hotswap/cli/print/table.h"
#include "hotswap/cli/test_program.h"
#include "hotswap/models/formats/safetensors.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::Cli;
using test_support::CliModel;
using test_support::keys;
using test_support::Keys;
using test_support::model_data;
using test_support::Outcome;
using OutJson = nlohmann::json;

TEST_F(Cli, HelpIsEverywhere) {
  for (const char* verb : {"",
                           "demo",
                           "chat",
                           "chat-template",
                           "generate",
                           "score",
                           "tokenize",
                           "merge",
                           "kernelize",
                           "kernel",
                           "kernel list",
                           "kernel info",
                           "kernel hash",
                           "kernel check",
                           "kernel verify",
                           "kernel install",
                           "kernel lock",
                           "kernel download",
                           "kernel versions",
                           "kernel has",
                           "kernel verify-signature",
                           "cache",
                           "cache ls",
                           "cache verify",
                           "cache rm",
                           "ls",
                           "rm",
                           "download",
                           "pull",
                           "bench",
                           "bench model",
                           "bench serve",
                           "env",
                           "python-env"}) {
    const Outcome outcome = run(std::string(verb) + " --help");
    EXPECT_EQ(outcome.status, 0) << verb;
    EXPECT_NE(outcome.out.find("Usage"), std::string::npos) << verb;
  }
  EXPECT_EQ(run("--version").status, 0);
}

TEST_F(Cli, WrongUsageIsTwo) {
  for (const char* line : {"",
                           "nonsense",
                           "generate",
                           "generate --model x",
                           "generate x",
                           "chat",
                           "rm",
                           "generate x y --prompt a",
                           "generate --model x --prompt a --ids b",
                           "score --model x",
                           "score --model x --text a --ids b",
                           "kernelize",
                           "kernelize --model x --kernel RMSNorm",
                           "kernel",
                           "kernel verify",
                           "kernel hash /nowhere",
                           "kernel install /nowhere --as a/b",
                           "cache",
                           "cache rm",
                           "demo",
                           "generate --model x --prompt a --max-new-tokens -1",
                           "env --nonsense",
                           "bench --size enormous"}) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.status, 2) << line;
    EXPECT_TRUE(outcome.out.empty()) << line;
    EXPECT_FALSE(outcome.err.empty()) << line;
  }
}

TEST_F(Cli, ErrorsAreOneAndNameTheNextStep) {
  for (const char* line :
       {"generate --model /nowhere --prompt a", "score --model /nowhere --text /nowhere/too",
        "tokenize --model /nowhere", "kernelize --model /nowhere", "kernel info nonsense", "bench nonsense"}) {
    const Outcome outcome = run(line);
    EXPECT_EQ(outcome.status, 1) << line;
    EXPECT_TRUE(outcome.out.empty()) << line;
    EXPECT_NE(outcome.err.find("expected"), std::string::npos) << line << outcome.err;
    EXPECT_NE(outcome.err.find("got"), std::string::npos) << line << outcome.err;
  }
}

// Of a variant made here: nothing of it is code.
TEST_F(Cli, OutputThatDoesNotArriveIsAnError) {
  for (const char* verb : {"env", "kernel list --json", "kernel info norm"}) {
    const std::string line = "timeout 60 " + program().string() + " " + verb + " >/dev/full 2>" + file("said").string();
    EXPECT_EQ(WEXITSTATUS(std::system(line.c_str())), 1) << verb;
    const std::string said = read_file(file("said"));
    EXPECT_TRUE(said.find("to write the output") != said.npos && said.find("No space left") != said.npos) << said;
  }
}

TEST_F(Cli, KernelHashCheckAndVerify) {
  const fs::path variant = file("torch-cpu");
  fs::create_directories(variant);
  write_file(variant / "__init__.py", "");
  write_file(
      variant / "metadata.json",
      R"({"name": "ab", "id": "_ab", "version": 1, "license": "mit", "python-depends": [], "backend": {"type": "cpu"}})");
  const std::string at = variant.string();
  const Outcome unhashed = run("kernel check " + at);
  EXPECT_EQ(unhashed.status, 1);
  EXPECT_NE(unhashed.out.find("no digest"), std::string::npos) << unhashed.out;
  EXPECT_EQ(run("kernel hash " + at).out, "torch-cpu: sha256 of 1 files\n");
  EXPECT_EQ(run("kernel check " + at).out,
            "torch-cpu: good\ntorch-cpu: not checked: its layers: without layers.json a C++ host finds none\n");
  EXPECT_EQ(run("kernel check --strict " + at).status, 1);

  const Outcome nobody = run("kernel verify " + at);
  EXPECT_EQ(nobody.status, 1);
  EXPECT_NE(nobody.out.find("SignatureBundleMissing"), std::string::npos) << nobody.out;
  EXPECT_EQ(run_json("kernel verify --allow-unsigned --json " + at)[0]["result"], "Unsigned");
  write_file(variant / "__init__.py", "import os");
  EXPECT_EQ(run("kernel check " + at).status, 1);
  EXPECT_EQ(run("kernel verify --allow-unsigned " + at).status, 1);
  EXPECT_EQ(run("kernel hash " + at).status, 0);
  const auto result = [&] {
    return nlohmann::json::parse(run("kernel verify --allow-unsigned --json " + at).out)[0]["result"];
  };
  fs::remove(variant / "__init__.py");
  EXPECT_EQ(result(), "DigestVerificationFailure");
  EXPECT_EQ(run("kernel hash " + at).status, 0);
  EXPECT_EQ(result(), "Unsigned") << "as its metadata has it; that Python finds no module in it is check's matter";
  write_file(variant / "metadata.json", "{}");
  EXPECT_EQ(result(), "MetadataInvalid");
  EXPECT_EQ(run("kernel verify --lock /nowhere " + at).status, 2);
}

TEST_F(Cli, EnvAndKernelList) {
  const OutJson env = run_json("env --json");
  EXPECT_TRUE(env.contains("torch") && env.contains("device") && env.contains("variants"));
  EXPECT_TRUE(env["host"].contains("backend") && env["host"].contains("cxx11_abi"));
  bool has_home = false;
  for (const auto& row : env["environment"]) has_home |= row["name"] == "HF_HOME";
  EXPECT_TRUE(has_home);
  EXPECT_EQ(run("env").status, 0);

  const OutJson list = run_json("kernel list --json");
  ASSERT_FALSE(list.empty()) << "build the packages";
  EXPECT_EQ(keys(list[0]), (Keys{"digest", "layers", "name", "path", "variant", "version"}));
  const OutJson norm = run_json("kernel info norm --json");
  EXPECT_EQ(norm["layers"]["RMSNorm"]["contract"], "rms_norm/1");
  EXPECT_EQ(keys(norm["layers"]["RMSNorm"]["capabilities"]),
            (Keys{"backward", "capture", "deterministic", "dtypes", "features", "numbers", "weights"}));
  EXPECT_EQ(norm["digest"].get<std::string>().rfind("sha256:", 0), 0u);
  EXPECT_NE(run("kernel info " + norm["path"].get<std::string>()).out.find("RMSNorm"), std::string::npos);
}

TEST_F(Cli, BenchChecksAndTimesAnOp) {
  const Outcome outcome =
      run("bench silu rms_norm_bwd --size cache --dtype float32 --seconds 0.01 --csv " + file("out.csv").string());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("rms_norm_bwd"), std::string::npos);
  const std::string csv = read_file(file("out.csv"));
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
  for (size_t begin = 0; begin < csv.size(); begin = csv.find('\n', begin) + 1) {
    EXPECT_EQ(std::count(csv.begin() + begin, csv.begin() + csv.find('\n', begin), ','), 23) << csv.substr(begin);
  }
}

TEST_F(CliModel, GenerateGivesTheGoldenIds) {
  const OutJson golden_case = golden()["cases"][0];
  write_file(file("ids.json"), golden_case["input_ids"].dump());
  const auto want = golden_case["output_ids"].get<std::vector<int64_t>>();
  for (const char* kernels : {"", " --use-kernels --strict", " --use-kernels --kernel RMSNorm="}) {
    const OutJson out = run_json("generate " + model() + " --ids " + file("ids.json").string() +
                                 " --max-new-tokens 64 --json" + kernels);
    EXPECT_EQ(keys(out), (Keys{"decode_ms", "decode_tokens_per_second", "kernels", "prefill_ms",
                               "prefill_tokens_per_second", "prompt_ids", "text", "token_ids"}));
    EXPECT_EQ(out["token_ids"].get<std::vector<int64_t>>(), want) << kernels;
    EXPECT_EQ(out["kernels"].empty(), *kernels == '\0');
  }
  const auto prompt = golden_case["prompt"].get<std::string>();
  const std::string line = "generate " + model() + " --max-new-tokens 64 --prompt '" + prompt + "'";
  const OutJson out = run_json(line + " --json");
  EXPECT_EQ(out["prompt_ids"], golden_case["input_ids"]);
  const Outcome plain = run(line), streamed = run(line + " --stream");
  EXPECT_EQ(plain.out, out["text"].get<std::string>() + "\n");
  EXPECT_EQ(streamed.out, plain.out);
}

// Prompts of different length are one batch, without padding.
TEST_F(CliModel, GenerateRunsSeveralPromptsAsOneBatch) {
  const std::vector<std::vector<int64_t>> prompts = {{5, 6, 7, 8}, {9}, {10, 11}};
  const auto generated = [&](const OutJson& ids) {
    write_file(file("ids.json"), ids.dump());
    return run_json("generate " + model() + " --ids " + file("ids.json").string() + " --max-new-tokens 9 --json");
  };
  const OutJson all = generated(prompts);
  EXPECT_EQ(all["prompt_ids"], OutJson(prompts));
  for (size_t row = 0; row < prompts.size(); ++row) {
    EXPECT_EQ(all["token_ids"][row], generated(prompts[row])["token_ids"]) << "row " << row;
  }
}

TEST_F(CliModel, SamplingFollowsItsSeed) {
  const std::string line =
      "generate " + model() + " --prompt 'You' --max-new-tokens 24 --temperature 1.0 --top-k 50 --json";
  const OutJson a = run_json(line + " --seed 7"), b = run_json(line + " --seed 7"), c = run_json(line + " --seed 8");
  EXPECT_EQ(a["token_ids"], b["token_ids"]);
  EXPECT_NE(a["token_ids"], c["token_ids"]);
}

TEST_F(CliModel, ScoreGivesTheGoldenLoss) {
  for (const auto& row : golden()["losses"]) {
    const fs::path text = model_data() / row["file"].get<std::string>();
    const OutJson out = run_json("score " + model() + " --text " + text.string() + " --max-tokens " +
                                 std::to_string(row["tokens"].get<int>()) + " --use-kernels --json");
    EXPECT_EQ(keys(out), (Keys{"kernels", "loss", "perplexity", "tokens"}));
    EXPECT_NEAR(out["loss"].get<double>(), row["mean_loss"].get<double>(), 1e-4);
    EXPECT_NEAR(out["perplexity"].get<double>(), std::exp(out["loss"].get<double>()), 1e-6);
    EXPECT_EQ(out["tokens"], row["tokens"]);
  }
}

TEST_F(CliModel, ScoreWritesLogits) {
  write_file(file("ids.json"), "[[1, 403, 407, 261], [1, 385, 328, 432]]");
  const std::string line = "score " + model() + " --ids " + file("ids.json").string();
  run_json(line + " --json --logits-out " + file("logits.safetensors").string());
  const SafetensorsFile logits(file("logits.safetensors"));
  EXPECT_EQ(logits.tensor("logits").sizes(), (at::IntArrayRef{2, 4, 512}));
  EXPECT_EQ(logits.tensor("logits").scalar_type(), at::kFloat);

  write_file(file("ids.json"), "[[1, 512]]");
  EXPECT_EQ(run(line).status, 1);  // no such id
  write_file(file("ids.json"), "[[1, 2], [1, 2, 3]]");
  EXPECT_EQ(run(line).status, 0);
  EXPECT_EQ(run(line + " --logits-out " + file("uneven.safetensors").string()).status, 1);
  EXPECT_FALSE(fs::exists(file("uneven.safetensors")));
}

TEST_F(CliModel, TokenizeThereAndBack) {
  const auto text = golden()["cases"][0]["prompt"].get<std::string>();
  const OutJson out = run_json("tokenize --json " + model(), text + "\n");
  EXPECT_EQ(keys(out), (Keys{"ids", "offsets", "tokens"}));
  EXPECT_EQ(out["ids"], golden()["cases"][0]["input_ids"]);
  EXPECT_EQ(out["ids"].size(), out["offsets"].size());
  const Outcome plain = run("tokenize --no-special " + test_support::tiny_model().string(), text + "\n");
  EXPECT_EQ(run("tokenize --decode --no-special " + model(), plain.out).out, text + "\n");
  EXPECT_EQ(run("tokenize --decode " + model(), "one two\n").status, 1);
  const Outcome outside = run("tokenize --decode " + model(), "[1, 99999999]\n");
  EXPECT_EQ(outside.status, 1);
  expect_has(outside.err, {"tokens, from 0 to ", "in stdin, line 1; got 99999999; pass ids"});
}

TEST_F(CliModel, TokenizePairsTruncatedInBatches) {
  const std::string lines = "Once upon a time\tthere was a small cat\na\tb\n";
  EXPECT_EQ(run("tokenize --pair --threads 2 " + model(), lines).out, run("tokenize --pair " + model(), lines).out);
  const OutJson out =
      run_json("tokenize --json --pair --max-length 5 --overflowing " + model(), "Once upon a time\tthere was a cat\n");
  EXPECT_EQ(keys(out), (Keys{"ids", "offsets", "overflowing", "tokens", "type_ids"}));
  EXPECT_EQ(out["ids"].size(), 5u);
  EXPECT_GT(out["overflowing"].size(), 0u);
  EXPECT_EQ(run("tokenize --pair " + model(), "no tab\n").status, 1);
}

// As chat-template and a tokenizer after it, without a second set of special tokens.
TEST_F(CliModel, TokenizeMessagesByTheChatTemplate) {
  const fs::path folder = file("talks");
  fs::copy(test_support::tiny_model(), folder);
  write_file(folder / "chat_template.jinja",
             "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
             "{% if add_generation_prompt %}assistant:{% endif %}");
  write_file(file("chat.json"), R"([{"role": "user", "content": "Once upon a time"}])");
  const std::string verb = cat("tokenize ", folder.string(), " --messages ", file("chat.json").string());
  const Outcome ids = run(verb + " --add-generation-prompt");
  ASSERT_EQ(ids.status, 0) << ids.err;
  EXPECT_EQ(run(cat("tokenize --decode ", folder.string()), ids.out).out, "user: Once upon a time\nassistant:\n");
  EXPECT_EQ(run(cat("chat-template --ids --add-generation-prompt ", folder.string(), " --messages ",
                    file("chat.json").string()))
                .out,
            ids.out);
  EXPECT_EQ(run(cat("tokenize ", folder.string(), " --messages - --add-generation-prompt"),
                R"({"messages": [{"role": "user", "content": "Once upon a time"}]})")
                .out,
            ids.out);
  const OutJson whole = run_json(verb + " --json");
  EXPECT_EQ(keys(whole), (Keys{"ids", "offsets", "tokens"}));
  EXPECT_LT(whole["ids"].size(), static_cast<size_t>(std::count(ids.out.begin(), ids.out.end(), ' ') + 1));
  EXPECT_EQ(run_json(verb + " --json --max-length 3")["ids"].size(), 3u);
  EXPECT_EQ(run(verb + " --decode").status, 2);
  EXPECT_EQ(run(verb + " --pair").status, 2);
  EXPECT_EQ(run(cat("tokenize --add-generation-prompt ", folder.string()), "a\n").status, 2);
}

TEST_F(CliModel, KernelizeReportsEveryLayer) {
  const OutJson out = run_json("kernelize --json " + model());
  EXPECT_EQ(keys(out), (Keys{"layers"}));
  ASSERT_FALSE(out["layers"].empty());
  int bound = 0;
  for (const auto& row : out["layers"]) {
    EXPECT_EQ(keys(row),
              (Keys{"device", "digest", "layer", "mode", "name", "package", "package_layer", "reason", "version"}));
    bound += !row["package"].is_null();
  }
  EXPECT_GT(bound, 20);
  const OutJson without = run_json("kernelize --json " + model() + " --kernel RMSNorm= --mode TRAINING");
  for (const auto& row : without["layers"]) {
    if (row["layer"] == "RMSNorm") {
      EXPECT_TRUE(row["package"].is_null());
    }
    EXPECT_EQ(row["mode"], "TRAINING");
  }
  EXPECT_EQ(run("kernelize " + model() + " --strict --kernel RMSNorm=acme/none:RMSNorm").status, 1);

  write_file(file("config.json"), R"({"kernel_mapping": {"RMSNorm": {"cpu": ""}}})");
  const OutJson by_file = run_json("kernelize --json " + model() + " --kernel-config " + file("config.json").string());
  EXPECT_EQ(by_file["layers"].size(), out["layers"].size());
  write_file(file("config.json"), R"({"kernel_maping": {}})");
  EXPECT_EQ(run("kernelize " + model() + " --kernel-config " + file("config.json").string()).status, 1);
}

TEST_F(CliModel, AFileSaysAKernelForEachMode) {
  const auto bound = [&](const char* mode) {
    const std::string config = " --kernel-config " + file("config.json").string();
    const OutJson report = run_json("kernelize --json " + model() + config + " --mode " + mode);
    int count = 0;
    for (const auto& row : report["layers"]) {
      count += row["layer"] == "RMSNorm" && !row["package"].is_null();
    }
    return count;
  };
  write_file(file("config.json"),
             R"({"kernel_mapping": {"RMSNorm": {"cpu": {"INFERENCE": "", "TRAINING": "hotswap/norm:RMSNorm"}}}})");
  EXPECT_EQ(bound("INFERENCE"), 0);
  EXPECT_GT(bound("TRAINING"), 0);
  const std::pair<const char*, const char*> refused[] = {{"{}", "at least one mode of RMSNorm for cpu"},
                                                         {R"({"EVAL": ""})", "INFERENCE, TRAINING"},
                                                         {R"({"TORCH_COMPILE": ""})", "add one of them"}};
  for (const auto& [modes, why] : refused) {
    write_file(file("config.json"), cat(R"({"kernel_mapping": {"RMSNorm": {"cpu": )", modes, "}}}"));
    const Outcome out = run("kernelize " + model() + " --kernel-config " + file("config.json").string());
    EXPECT_EQ(out.status, 1) << modes;
    test_support::expect_has(out.err, {why});
  }
}

TEST_F(CliModel, WhatStaysStockIsSaidOnStderr) {
  write_file(file("ids.json"), "[1, 403]");
  const std::string line = "generate " + model() + " --ids " + file("ids.json").string() + " --max-new-tokens 1 ";
  EXPECT_EQ(run(line + "--use-kernels").err.find("slots bound"), std::string::npos);
  fs::create_directories(file("empty"));
  const Outcome none = run_with("env HOTSWAP_PACKAGES=" + file("empty").string() + " ", line + "--use-kernels");
  EXPECT_EQ(none.status, 0);
  test_support::expect_has(none.err, {"kernels: 0 of ", "no kernel is mapped for RMSNorm", "no package in "});
  // An entry for a layer that the model has not, beside others of the same key.
  const std::string geglu = "--kernel MLP=kernels-community/liger_kernels:LigerGEGLUMLP ";
  test_support::expect_has(run(line + geglu).err, {"the model has no GeGLUMLP, only SwiGLUMLP"});
  const Outcome strict = run("kernelize " + model() + " " + geglu + "--strict");
  EXPECT_EQ(strict.status, 1);
  test_support::expect_has(strict.err, {"the mapping's entry MLP=kernels-community/liger_kernels:LigerGEGLUMLP"});
  const Outcome both = run(line + "--use-kernels --kernel attention= --attn-implementation flash_attention_2");
  EXPECT_EQ(both.status, 1);
  test_support::expect_has(both.err, {"one kernel for the attention", "flash_attention_2", "drop one"});
  const Outcome stock = run(line + "--kernel attention=kernels-community/flash-attn2 --attn-implementation sdpa");
  EXPECT_EQ(stock.status, 1);
  test_support::expect_has(stock.err, {"one kernel for the attention", "sdpa", "drop one"});
  const Outcome twice = run(line + "--kernel RMSNorm=hotswap/norm --kernel RMSNorm=");
  EXPECT_EQ(twice.status, 2);
  test_support::expect_has(twice.err, {"one kernel for a layer", "RMSNorm"});
  EXPECT_TRUE(twice.err.starts_with("--kernel: ")) << twice.err;
  for (const char* flag : {"--temperature nan", "--temperature inf", "--temperature -1", "--seed -1", "--top-k -1"}) {
    const Outcome refused = run(line + flag);
    EXPECT_EQ(refused.status, 2) << flag;
    test_support::expect_has(refused.err, {"expected a number of 0 or more"});
  }
  for (const std::string device : {"gpu", "mps", "xpu", "cuda:x"}) {
    test_support::expect_has(run(line + "--device " + device).err, {"cpu, cuda, cuda:N or auto", "'" + device + "'"});
  }
}

TEST_F(CliModel, DemoWritesTableAndPlotAndModel) {
  write_file(file("data.txt"), read_file(model_data() / "text/license.txt"));
  const Outcome outcome = run("demo " + model() + " --steps 4 --columns 64 --new-tokens 8 --data " +
                              file("data.txt").string() + " --output-dir " + file("demo").string());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  for (const char* wanted : {"layers swapped", "trained tokens/s", "peak memory", "same answers: yes"}) {
    EXPECT_NE(outcome.out.find(wanted), std::string::npos) << wanted << '\n' << outcome.out;
  }
  EXPECT_NE(read_file(file("demo/demo.svg")).find("</svg>"), std::string::npos);
  EXPECT_EQ(run("score --model " + file("demo/model").string() + " --text " + file("data.txt").string()).status, 0);
}

TEST(Table, AlignsAndRefuses) {
  Table table({"a", "b"});
  table.row({"x", "1"});
  table.row({"longer", "22"});
  EXPECT_EQ(table.text(), "a        b\n----------\nx        1\nlonger  22\n");
  EXPECT_ANY_THROW(table.row({"one"}));
  EXPECT_EQ(csv_cell("a,\"b\""), "\"a,\"\"b\"\"\"");
}

TEST(Plot, DrawsEveryValue) {
  const std::string svg = svg_plot("t<>", {{.title = "l", .lines = {{"one", {3, 2, 1}}, {"two", {3, NAN, 1}}}}},
                                   {{.title = "b", .series = {"s", "k"}, .groups = {{"g", {10, 25}}}}});
  EXPECT_NE(svg.find("t&lt;&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(svg.find(">25<"), std::string::npos);
  EXPECT_EQ(ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
}

}  // namespace
}  // namespace hotswap
