// What goes wrong in each room, and the kind that a program reads of it: one table, and the exit statuses that follow.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/json.h"
#include "hotswap/base/result.h"
#include "hotswap/base/test_support.h"
#include "hotswap/base/toml.h"
#include "hotswap/chat/chat_template.h"
#include "hotswap/cli/test_program.h"
#include "hotswap/engine/sampler.h"
#include "hotswap/hub/hub.h"
#include "hotswap/hub/net/hub_error.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/project.h"
#include "hotswap/kernelize/mode.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/layers/activation.h"
#include "hotswap/layers/attention.h"
#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/formats/gguf.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/tokenizers/tokenizer.h"
#include "hotswap/training/schedules/schedule.h"

namespace hotswap {
namespace {

using test_support::TempFolder;
using enum ErrorKind;

struct Case {
  const char* name;
  ErrorKind kind;
  std::function<void(const TempFolder& folder)> fails;
};

void model_of(const TempFolder& folder, const std::string& config) {
  folder.write("model/config.json", config);
  AutoModelForCausalLM::from_pretrained(folder / "model");
}

std::string llama(const std::string& more) {
  return R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2, "rms_norm_eps": 1e-5, "max_position_embeddings": 16)" +
         more + "}";
}

void render(const std::string& source, const std::string& messages) {
  const ChatTemplate chat({{"default", source}}, nlohmann::ordered_json::object());
  chat.render({.messages = nlohmann::ordered_json::parse(messages)});
}

void tokenizer_of(const std::string& model) {
  Tokenizer::from_json(R"({"version": "1.0", "added_tokens": [], "model": )" + model + "}", "tokenizer.json");
}

HubOptions hub_options(const TempFolder& folder, bool offline) {
  return {.endpoint = "http://127.0.0.1:9",  // the discard port: no server is there
          .cache = folder / "cache",
          .kernels_cache = folder / "kernels",
          .offline = offline,
          .http = {.retries = 0}};
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"base_missing_file", kNotFound, [](const TempFolder& folder) { read_file(folder / "none"); }},
      {"base_folder_as_file", kInvalidArgument, [](const TempFolder& folder) { MappedFile file(folder.path()); }},
      {"base_broken_json", kCorrupt, [](const TempFolder&) { Json::parse("{", "x.json"); }},
      {"base_wrong_type", kCorrupt, [](const TempFolder&) { Json::parse(R"({"a": "b"})", "x").at<int64_t>("a"); }},
      {"base_broken_toml", kCorrupt, [](const TempFolder&) { parse_toml("[", "x.toml"); }},
      {"base_untested_result", kInternal, [](const TempFolder&) { *Result<int>(Reason{"none"}); }},
      {"base_wrong_variable", kInvalidArgument,
       [](const TempFolder&) {
         const test_support::ScopedEnv wrong("HF_HUB_OFFLINE", "perhaps");
         HubOptions::from_env();
       }},
      {"hub_name", kInvalidArgument,
       [](const TempFolder& f) {
         Hub(hub_options(f, true)).file({RepoType::kModel, "a/b/c"}, "main", "x");
       }},
      {"hub_offline", kUnavailable,
       [](const TempFolder& f) {
         Hub(hub_options(f, true)).file({RepoType::kModel, "a/b"}, "main", "x");
       }},
      {"hub_no_answer", kUnavailable,
       [](const TempFolder& f) {
         Hub(hub_options(f, false)).file({RepoType::kModel, "a/b"}, "main", "x");
       }},
      {"hub_changed_package", kCorrupt,
       [](const TempFolder& folder) {
         folder.write("package/file", "x");
         verify_digests(folder / "package", {.algorithm = "sha256", .files = {{"file", "00"}}});
       }},
      {"hub_no_project", kNotFound, [](const TempFolder& folder) { Project::read(folder.path()); }},
      {"layers_activation", kUnsupported, [](const TempFolder&) { activation_kind("mish", "hidden_act"); }},
      {"layers_attention", kInvalidArgument, [](const TempFolder&) { attention_kind("fast"); }},
      {"layers_packed_rows", kCorrupt,
       [](const TempFolder&) {
         dequantised(at::zeros({2, 5}, at::kByte), *find_gguf_type("Q8_0"), 32, at::kFloat);
       }},
      {"kernelize_mode", kInvalidArgument, [](const TempFolder&) { Mode::parse("FAST"); }},
      {"kernelize_device", kInvalidArgument, [](const TempFolder&) { device_named("tpu"); }},
      {"models_no_folder", kNotFound,
       [](const TempFolder& folder) { AutoModelForCausalLM::from_pretrained(folder / "none"); }},
      {"models_unknown_family", kUnsupported,
       [](const TempFolder& folder) { model_of(folder, R"({"model_type": "perceiver"})"); }},
      {"models_quantised", kUnsupported,
       [](const TempFolder& folder) {
         model_of(folder, llama(R"(, "quantization_config": {"quant_method": "hqq"})"));
       }},
      {"models_contradiction", kCorrupt,
       [](const TempFolder& folder) { model_of(folder, llama(R"(, "num_key_value_heads": 3)")); }},
      {"models_no_weights", kNotFound, [](const TempFolder& folder) { model_of(folder, llama("")); }},
      {"models_broken_safetensors", kCorrupt,
       [](const TempFolder& folder) { SafetensorsFile file(folder.write("x.safetensors", "not one")); }},
      {"models_broken_gguf", kCorrupt, [](const TempFolder& folder) { GgufFile file(folder.write("x.gguf", "GGUX")); }},
      {"models_unnamed_tensor", kInvalidArgument,
       [](const TempFolder& folder) {
         save_safetensors(folder / "x", {{"a", at::Tensor()}});
       }},
      {"tokenizers_missing", kNotFound, [](const TempFolder& folder) { Tokenizer::from_folder(folder.path()); }},
      {"tokenizers_broken", kCorrupt, [](const TempFolder&) { Tokenizer::from_json("{", "tokenizer.json"); }},
      {"tokenizers_type", kUnsupported,
       [](const TempFolder&) { tokenizer_of(R"({"type": "Morfessor", "vocab": {}, "merges": []})"); }},
      {"tokenizers_text", kInvalidArgument,
       [](const TempFolder&) {
         Tokenizer::from_json(
             R"({"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})",
             "t")
             .ids("\xff");
       }},
      {"chat_no_template", kNotFound, [](const TempFolder& folder) { ChatTemplate::from_folder(folder.path()); }},
      {"chat_syntax", kCorrupt, [](const TempFolder&) { render("{% if %}", "[]"); }},
      {"chat_refused", kInvalidArgument, [](const TempFolder&) { render("{{ raise_exception('no') }}", "[]"); }},
      {"chat_messages", kInvalidArgument, [](const TempFolder&) { render("x", R"("text")"); }},
      {"generation_temperature", kInvalidArgument,
       [](const TempFolder&) { Sampler({.do_sample = true, .temperature = -1}, at::kCPU); }},
      {"training_schedule", kInvalidArgument, [](const TempFolder&) { Schedule("cyclic", {}); }},
  };
  return all;
}

class ErrorKinds : public testing::TestWithParam<Case> {};

TEST_P(ErrorKinds, IsWhatAProgramCanActOn) {
  const TempFolder folder;
  try {
    GetParam().fails(folder);
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(name_of(error.kind()), name_of(GetParam().kind)) << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(AllRooms, ErrorKinds, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(HubErrors, TheKindFollowsFromTheReason) {
  const auto kind = [](HubReason reason, int status = 0) {
    return HubError({.wanted = "a", .got = "b", .next = "c"}, {.reason = reason, .status = status}).kind();
  };
  for (const HubReason reason : {HubReason::kRepoNotFound, HubReason::kRevisionNotFound, HubReason::kEntryNotFound}) {
    EXPECT_EQ(kind(reason), kNotFound);
  }
  for (const HubReason reason : {HubReason::kGatedRepo, HubReason::kUnauthorized, HubReason::kNotAllowed}) {
    EXPECT_EQ(kind(reason), kInvalidArgument);
  }
  for (const HubReason reason :
       {HubReason::kDisabledRepo, HubReason::kRateLimited, HubReason::kOffline, HubReason::kConnection}) {
    EXPECT_EQ(kind(reason), kUnavailable);
  }
  EXPECT_EQ(kind(HubReason::kBadAnswer), kCorrupt);
  EXPECT_EQ(kind(HubReason::kHttp, 503), kUnavailable);
  EXPECT_EQ(kind(HubReason::kHttp, 404), kNotFound);
}

class CliErrorKinds : public test_support::Cli {};

TEST_F(CliErrorKinds, DecideTheExitStatus) {
  EXPECT_EQ(run("generate --model /nowhere --prompt a").status, 1);
  const std::string offline =
      "env HF_HUB_OFFLINE=1 HF_HUB_CACHE=" + file("cache").string() + " HF_HOME=" + file("home").string() + " ";
  EXPECT_EQ(run_with(offline, "generate --model a/b --prompt a").status, 75);
}

}  // namespace
}  // namespace hotswap
