#include "hotswap/models/formats/gguf_write.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/models/formats/gguf.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::message_of;
using test_support::TempFolder;

at::Tensor bytes(int64_t count, int value) { return at::full({count}, value, at::TensorOptions().dtype(at::kByte)); }
const GgufType& gguf_type(const std::string& name) { return *find_gguf_type(name); }

TEST(GgufWriter, WritesWhatTheReaderReads) {
  const TempFolder folder;
  GgufWriter out;
  out.text("general.architecture", "llama");
  out.number("llama.block_count", 30);
  out.real("llama.rope.freq_base", 10000);
  out.flag("tokenizer.ggml.add_bos_token", true);
  out.texts("tokenizer.ggml.tokens", {"a", "", "\u00e4\n"});
  out.integers("tokenizer.ggml.token_type", {1, -1, 6});
  out.reals("tokenizer.ggml.scores", {0, -1.5F});
  out.texts("empty", {});
  out.tensor("first", gguf_type("Q8_0"), {3, 32});  // 102 bytes: padding follows
  out.tensor("second", gguf_type("F32"), {2, 1, 5});
  ASSERT_EQ(out.tensors(), 2U);
  out.write(folder / "x.gguf", [](size_t i) { return bytes(i == 0 ? 102 : 40, static_cast<int>(i)); });

  const GgufFile file(folder / "x.gguf");
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.at<std::string>("general.architecture"), "llama");
  EXPECT_EQ(file.at<int64_t>("llama.block_count"), 30);
  EXPECT_EQ(file.at<double>("llama.rope.freq_base"), 10000);
  EXPECT_TRUE(file.at<bool>("tokenizer.ggml.add_bos_token"));
  EXPECT_EQ(file.at<std::vector<std::string>>("tokenizer.ggml.tokens"),
            (std::vector<std::string>{"a", "", "\u00e4\n"}));
  EXPECT_EQ(file.at<std::vector<int64_t>>("tokenizer.ggml.token_type"), (std::vector<int64_t>{1, -1, 6}));
  EXPECT_EQ(file.at<std::vector<double>>("tokenizer.ggml.scores"), (std::vector<double>{0, -1.5}));
  EXPECT_TRUE(file.at<std::vector<std::string>>("empty").empty());
  EXPECT_EQ(file.names(), (std::vector<std::string>{"first", "second"}));
  EXPECT_EQ(file.info("second").shape, (std::vector<int64_t>{2, 1, 5}));
  EXPECT_EQ(file.info("first").data[101], 0);
  EXPECT_EQ(file.info("second").data[39], 1);
}

TEST(GgufWriter, LeavesNothingWhereAnErrorEndsIt) {
  const TempFolder folder;
  GgufWriter out;
  out.tensor("first", gguf_type("F32"), {4});
  out.tensor("second", gguf_type("F32"), {4});
  EXPECT_THROW(out.write(folder / "x.gguf",
                         [](size_t i) {
                           if (i == 1) throw std::runtime_error("half-way");
                           return bytes(16, 0);
                         }),
               std::runtime_error);
  const std::string wrong = message_of([&] { out.write(folder / "x.gguf", [](size_t) { return bytes(15, 0); }); });
  EXPECT_NE(wrong.find("16 bytes for tensor 'first'"), std::string::npos) << wrong;
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(GgufWriter, RefusesWhatNoFileHolds) {
  GgufWriter out;
  out.tensor("a", gguf_type("F32"), {4});
  out.number("key", 1);
  const auto refused = [&](const char* expected, const auto& declare) {
    const std::string message = message_of(declare);
    EXPECT_NE(message.find(expected), std::string::npos) << message;
  };
  refused("each tensor of a GGUF file once", [&] { out.tensor("a", gguf_type("F32"), {4}); });
  refused("each key of a GGUF file once", [&] { out.number("key", 1); });
  refused("whole blocks of 256 (Q4_K); got 'b' [2, 300]", [&] { out.tensor("b", gguf_type("Q4_K"), {2, 300}); });
  refused("1 to 4 dimensions", [&] { out.tensor("b", gguf_type("F32"), {}); });
  refused("n from 0 to 2^32 - 1; got -1", [&] { out.number("n", -1); });
}

}  // namespace
}  // namespace hotswap
