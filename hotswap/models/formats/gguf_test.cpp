#include "hotswap/models/formats/gguf.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "hotswap/base/sha256.h"
#include "hotswap/models/causal_lm.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/gguf_model.h"
#include "hotswap/models/formats/test_gguf.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {
namespace {

using test_support::floats;
using test_support::Gguf;
using test_support::little_endian;
using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;
using test_support::text;

struct BadFile {
  const char* name;
  std::string bytes;
  const char* says;
};

std::string with(Gguf gguf, void (*change)(Gguf&)) {
  change(gguf);
  return gguf.bytes();
}

std::vector<BadFile> bad_files() {
  const Gguf good = Gguf().str("general.architecture", "llama").tensor("a", {4}, 0, floats({1, 2, 3, 4}));
  const auto changed = [&](void (*change)(Gguf&)) { return with(good, change); };
  constexpr uint64_t kHuge = UINT64_MAX;
  return {
      {"empty", "", "the letters GGUF"},
      {"short_magic", "GGU", "the letters GGUF"},
      {"bad_magic", changed([](Gguf& g) { g.magic = "GGML"; }), "the letters GGUF"},
      {"magic_only", "GGUF", "the version"},
      {"version_1", changed([](Gguf& g) { g.version = 1; }), "version 1"},
      {"version_4", changed([](Gguf& g) { g.version = 4; }), "version 4"},
      {"big_endian", changed([](Gguf& g) { g.version = 0x03000000; }), "big-endian"},
      {"huge_tensor_count", changed([](Gguf& g) { g.tensor_count = UINT64_MAX; }), "a tensor count"},
      {"huge_metadata_count", changed([](Gguf& g) { g.key_count = UINT64_MAX / 13; }), "a metadata count"},
      {"one_key_too_many", changed([](Gguf& g) { g.key_count += 1; }), ""},
      {"one_tensor_too_many", changed([](Gguf& g) { g.tensor_count += 1; }), ""},
      {"key_length_past_the_end", changed([](Gguf& g) { g.keys.replace(0, 8, little_endian<uint64_t>(60'000)); }),
       "the end of the file"},
      {"key_length_huge", changed([](Gguf& g) { g.keys.replace(0, 8, little_endian<uint64_t>(UINT64_MAX)); }),
       "at most 65535"},
      {"empty_key", changed([](Gguf& g) { g.u32("", 1); }), "an empty one"},
      {"bad_utf8_key", changed([](Gguf& g) { g.u32("\xc3(", 1); }), "UTF-8"},
      {"bad_utf8_value", changed([](Gguf& g) { g.str("k", "\xed\xa0\x80"); }), "UTF-8"},
      {"overlong_utf8_value", changed([](Gguf& g) { g.str("k", "\xc0\xaf"); }), "UTF-8"},
      {"duplicate_key", changed([](Gguf& g) { g.str("general.architecture", "llama"); }), "twice"},
      {"unknown_value_type",
       changed([](Gguf& g) { g.u32("k", 1).keys.replace(g.keys.size() - 8, 4, little_endian<uint32_t>(13)); }), "13"},
      {"string_past_the_end", changed([](Gguf& g) { g.key("k", 8, UINT64_MAX - 4); }), "the end of the file"},
      {"bool_of_two", changed([](Gguf& g) { g.key("k", 7, uint8_t{2}); }), "0 or 1"},
      {"uint64_above_int64", changed([](Gguf& g) { g.key("k", 10, UINT64_MAX); }), "below 2^63"},
      {"array_of_unknown",
       changed([](Gguf& g) { g.key_bytes("k", 9, little_endian<uint32_t>(99) + little_endian<uint64_t>(0)); }),
       "type 99"},
      {"nested_array",
       changed([](Gguf& g) { g.key_bytes("k", 9, little_endian<uint32_t>(9) + little_endian<uint64_t>(1)); }),
       "nested"},
      {"array_length_huge", changed([](Gguf& g) {
         g.key_bytes("k", 9, little_endian<uint32_t>(8) + little_endian<uint64_t>(UINT64_MAX / 8));
       }),
       "an array length"},
      {"array_past_the_end",
       changed([](Gguf& g) { g.key_bytes("k", 9, little_endian<uint32_t>(0) + little_endian<uint64_t>(100'000)); }),
       "an array length"},
      {"zero_alignment", changed([](Gguf& g) { g.u32("general.alignment", 0); }), "power of two"},
      {"odd_alignment", changed([](Gguf& g) { g.u32("general.alignment", 24); }), "power of two"},
      {"huge_alignment", changed([](Gguf& g) { g.u32("general.alignment", 1u << 31); }), "power of two"},
      {"alignment_is_a_string", changed([](Gguf& g) { g.str("general.alignment", "32"); }), "an integer"},
      {"duplicate_tensor", changed([](Gguf& g) {
         g.tensor("a", {4}, 0, floats({1, 2, 3, 4}));
       }),
       "twice"},
      {"empty_tensor_name", changed([](Gguf& g) {
         g.tensor("", {4}, 0, floats({1, 2, 3, 4}));
       }),
       "an empty one"},
      {"no_dimensions", changed([](Gguf& g) { g.tensor("b", {}, 0, floats({1})); }), "1 to 4"},
      {"five_dimensions", changed([](Gguf& g) {
         g.tensor("b", {1, 1, 1, 1, 1}, 0, floats({1}));
       }),
       "1 to 4"},
      {"zero_extent", changed([](Gguf& g) {
         g.tensor("b", {4, 0}, 0, "");
       }),
       "from 1"},
      {"extent_overflow", changed([](Gguf& g) {
         g.tensor("b", {1ull << 32, 1ull << 32}, 0, "");
       }),
       "below 2^63"},
      {"byte_overflow", changed([](Gguf& g) { g.tensor("b", {1ull << 62}, 0, ""); }), "2^64"},
      {"unknown_tensor_type", changed([](Gguf& g) {
         g.tensor("b", {4}, 77, floats({1, 2, 3, 4}));
       }),
       "type 77"},
      {"removed_tensor_type", changed([](Gguf& g) { g.tensor("b", {32}, 4, std::string(20, 'x')); }), "type 4"},
      {"rows_of_half_a_block", changed([](Gguf& g) {
         g.tensor("b", {16, 2}, 8, std::string(34, 'x'));
       }),
       "whole blocks of 32"},
      {"overlapping_tensors", changed([](Gguf& g) { g.tensor_at("b", {4}, 0, 0); }), "overlap"},
      {"misaligned_tensor", changed([](Gguf& g) { g.tensor_at("b", {4}, 0, 16).data.resize(64); }), "overlap"},
      {"hole", changed([](Gguf& g) { g.tensor_at("b", {4}, 0, 64).data.resize(96); }), "a hole"},
      {"offset_huge", changed([](Gguf& g) { g.tensor_at("b", {4}, 0, UINT64_MAX - 31); }), "a hole"},
      {"data_cut", good.bytes().substr(0, good.bytes().size() - 17), "bytes of data"},
      {"no_data", with(good, [](Gguf& g) { g.data.clear(); }), "tensor data"},
      {"bytes_after_the_last_tensor", good.bytes() + std::string(32, 'x'), "belong to no tensor"},
      {"huge", changed([](Gguf& g) { g.tensor_at("b", {kHuge >> 1}, 24, 32); }), "within"},
  };
}

// Every number of gguf 0.19.0's GGMLQuantizationType, llama.cpp's newer Q2_0, and the types that ggml dropped while
// files had them: read by name and size, and a tensor of a type that is not implemented is refused by that name.
TEST(Gguf, NamesEveryTypeOfGgml) {
  const TempFolder folder;
  const std::map<uint32_t, std::string> names = {
      {0, "F32"},         {1, "F16"},       {2, "Q4_0"},     {3, "Q4_1"},    {6, "Q5_0"},        {7, "Q5_1"},
      {8, "Q8_0"},        {9, "Q8_1"},      {10, "Q2_K"},    {11, "Q3_K"},   {12, "Q4_K"},       {13, "Q5_K"},
      {14, "Q6_K"},       {15, "Q8_K"},     {16, "IQ2_XXS"}, {17, "IQ2_XS"}, {18, "IQ3_XXS"},    {19, "IQ1_S"},
      {20, "IQ4_NL"},     {21, "IQ3_S"},    {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},         {25, "I16"},
      {26, "I32"},        {27, "I64"},      {28, "F64"},     {29, "IQ1_M"},  {30, "BF16"},       {31, "Q4_0_4_4"},
      {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"}, {34, "TQ1_0"},   {35, "TQ2_0"},  {36, "IQ4_NL_4_4"}, {37, "IQ4_NL_4_8"},
      {38, "IQ4_NL_8_8"}, {39, "MXFP4"},    {40, "NVFP4"},   {41, "Q1_0"},   {42, "Q2_0"}};
  for (uint32_t id = 0; id < 64; ++id) {
    const GgufType* type = find_gguf_type(id);
    ASSERT_EQ(type != nullptr, names.contains(id)) << id;
    if (type == nullptr) continue;
    EXPECT_EQ(type->name, names.at(id));
    Gguf g = Gguf().str("general.architecture", "llama");
    g.tensor("b", {uint64_t(type->block)}, id, std::string(type->block_size, '\0'));
    put_file(folder / "typed.gguf", g.bytes());
    const GgufFile file(folder / "typed.gguf");
    const std::string message = message_of([&] { file.tensor("b", at::kFloat); });
    EXPECT_EQ(message, can_dequantise(*type) ? "no error" : message);
    if (!can_dequantise(*type)) EXPECT_NE(message.find(cat("type ", type->name)), std::string::npos) << message;
  }
}

TEST(Gguf, RefusesBadFiles) {
  const TempFolder folder;
  for (const BadFile& bad : bad_files()) {
    put_file(folder / "bad.gguf", bad.bytes);
    const std::string message = message_of([&] { GgufFile file(folder / "bad.gguf"); });
    EXPECT_NE(message, "no error") << bad.name;
    EXPECT_NE(message.find(bad.says), std::string::npos) << bad.name << ": " << message;
    EXPECT_NE(message.find("bad.gguf"), std::string::npos) << bad.name << ": " << message;
  }
}

TEST(Gguf, EveryCutAndEveryFlippedBitIsReadOrRefused) {
  const TempFolder folder;
  const std::string good =
      Gguf()
          .str("general.architecture", "llama")
          .u32("general.alignment", 32)
          .key_bytes("list", 9, little_endian<uint32_t>(8) + little_endian<uint64_t>(2) + text("x") + text("y"))
          .tensor("blk.0.attn_q.weight", {32, 2}, 8, std::string(68, '\1'))
          .bytes();
  for (size_t size = 0; size < good.size() - 28; ++size) {  // the last 28 bytes are padding, which may lack
    put_file(folder / "bad", good.substr(0, size));
    EXPECT_NE(message_of([&] { GgufFile file(folder / "bad"); }), "no error") << "cut to " << size;
  }
  int read = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    put_file(folder / "bad", flipped);
    try {
      const GgufFile file(folder / "bad");
      for (const std::string& name : file.names()) read += file.tensor(name).defined();
    } catch (const Error&) {
    }
  }
  EXPECT_GT(read, 0);
}

// A model in three files: metadata and tensors of each.
struct Parts {
  explicit Parts(const TempFolder& to) : folder(to) {
    for (uint16_t i = 0; i < 3; ++i) {
      Gguf& part = parts.emplace_back();
      if (i == 0) part.str("general.architecture", "llama").key("split.tensors.count", 5, int32_t{2});
      part.key("split.no", 2, i).key("split.count", 2, uint16_t{3});
      if (i > 0) part.tensor(i == 1 ? "a" : "b", {2}, 0, floats({static_cast<float>(i), 5}));
    }
  }
  std::filesystem::path path(int number) const { return folder / cat("m-0000", number, "-of-00003.gguf"); }
  std::string read(int number = 1) const {
    for (int i = 0; i < 3; ++i) put_file(path(i + 1), parts[i].bytes());
    return message_of([&] { GgufFile file(path(number)); });
  }
  const TempFolder& folder;
  std::vector<Gguf> parts;
};

TEST(Gguf, ASetIsReadByItsFirstPart) {
  const TempFolder folder;
  const Parts parts(folder);
  ASSERT_EQ(parts.read(), "no error");
  const auto checkpoint = open_checkpoint(folder.path(), "m-00001-of-00003.gguf");
  EXPECT_EQ(checkpoint->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(checkpoint->tensor("a")[0].item<float>(), 1.0f);
  EXPECT_EQ(checkpoint->tensor("b")[0].item<float>(), 2.0f);
  EXPECT_EQ(checkpoint->gguf()->at<std::string>("general.architecture"), "llama");
}

TEST(Gguf, ASetThatIsNotWholeIsRefused) {
  const TempFolder folder;
  const auto refused = [&](int number, const char* excerpt, const std::function<void(Parts&)>& change) {
    Parts parts(folder);
    change(parts);
    const std::string message = parts.read(number);
    EXPECT_NE(message.find(excerpt), std::string::npos) << message;
  };
  refused(2, "the first part, m-00001-of-00003.gguf", [](Parts&) {});
  refused(1, "'a' in", [](Parts& p) { p.parts[2].tensor("a", {2}, 0, floats({1, 2})); });
  refused(1, "split.no 1 and split.count 3", [](Parts& p) { std::swap(p.parts[1], p.parts[2]); });
  refused(1, "split.no 1 and split.count 3", [](Parts& p) { p.parts[1] = Gguf().tensor("a", {2}, 0, floats({1, 2})); });
  refused(1, "2 tensors in the parts", [](Parts& p) { p.parts[2].tensor("c", {2}, 0, floats({1, 2})); });
  refused(1, "the letters GGUF", [](Parts& p) { p.parts[2].magic = "FFFF"; });
  refused(1, "split.no below split.count",
          [](Parts& p) { p.parts[0] = Gguf().u32("split.no", 3).u32("split.count", 3); });
  refused(1, "'split.no'", [](Parts& p) { p.parts[0] = Gguf().u32("split.count", 3); });
  refused(1, "ends in -00001-of-00004.gguf",
          [](Parts& p) { p.parts[0] = Gguf().u32("split.no", 0).u32("split.count", 4); });
  std::filesystem::remove(folder / "m-00003-of-00003.gguf");
  put_file(folder / "m-00001-of-00003.gguf", Parts(folder).parts[0].bytes());
  put_file(folder / "m-00002-of-00003.gguf", Parts(folder).parts[1].bytes());
  EXPECT_NE(message_of([&] { GgufFile file(folder / "m-00001-of-00003.gguf"); }).find("no m-00003-of-00003.gguf"),
            std::string::npos);
}

TEST(Gguf, MetadataIsStrict) {
  const TempFolder folder;
  put_file(
      folder / "f",
      Gguf()
          .u32("n", 7)
          .key("i64", 11, int64_t{-5})
          .key("f64", 12, 0.5)
          .key("b", 7, uint8_t{1})
          .str("s", "text")
          .key_bytes("none", 9, little_endian<uint32_t>(6) + little_endian<uint64_t>(0))
          .key_bytes("bools", 9, little_endian<uint32_t>(7) + little_endian<uint64_t>(2) + "\1" + std::string(1, '\0'))
          .bytes());
  const GgufFile file(folder / "f");
  EXPECT_EQ(file.at<int64_t>("n"), 7);
  EXPECT_EQ(file.at<int64_t>("i64"), -5);
  EXPECT_EQ(file.at<double>("f64"), 0.5);
  EXPECT_TRUE(file.at<bool>("b"));
  EXPECT_EQ(file.at<std::string>("s"), "text");
  EXPECT_TRUE(file.at<std::vector<double>>("none").empty());
  EXPECT_EQ(file.at<std::vector<int64_t>>("bools"), (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(file.get<int64_t>("absent", 3), 3);
  EXPECT_NE(message_of([&] { file.at<std::string>("n"); }).find("a string for metadata key 'n'"), std::string::npos);
  EXPECT_NE(message_of([&] { file.get<double>("s", 1.0); }).find("a float for metadata key 's'"), std::string::npos);
  EXPECT_NE(message_of([&] { file.at<int64_t>("absent"); }).find("'absent'"), std::string::npos);
}

// Blocks whose weights are known by the format's definition.
TEST(Gguf, Dequantises) {
  const TempFolder folder;
  std::string q8, q4_0, q4_1, f16, bf16;
  q8 = little_endian<uint16_t>(0x3800);  // 0.5
  for (int i = 0; i < 32; ++i) q8 += static_cast<char>(i - 16);
  q4_0 = little_endian<uint16_t>(0x4000);                                    // 2
  q4_1 = little_endian<uint16_t>(0x4000) + little_endian<uint16_t>(0xc200);  // 2, -3
  for (int i = 0; i < 16; ++i) {
    q4_0 += static_cast<char>(i | (15 - i) << 4);
    q4_1 += static_cast<char>(i | (15 - i) << 4);
  }
  for (int i = 0; i < 3; ++i) f16 += little_endian<uint16_t>(0x3c00), bf16 += little_endian<uint16_t>(0x3f80);
  put_file(folder / "f", Gguf()
                             .tensor("q8", {32}, 8, q8)
                             .tensor("q4_0", {32}, 2, q4_0)
                             .tensor("q4_1", {32, 1}, 3, q4_1)
                             .tensor("f16", {3}, 1, f16)
                             .tensor("bf16", {3}, 30, bf16)
                             .tensor("f32", {3, 2}, 0, floats({1, 2, 3, 4, 5, 6}))
                             .tensor("iq1_s", {256}, 19, std::string(50, 'x'))
                             .bytes());
  const GgufFile file(folder / "f");
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(file.tensor("q8", dtype)[i].item<float>(), 0.5f * static_cast<float>(i - 16));
      const int q = i < 16 ? i : 15 - (i - 16);
      EXPECT_EQ(file.tensor("q4_0", dtype)[i].item<float>(), 2.0f * static_cast<float>(q - 8));
      EXPECT_EQ(file.tensor("q4_1", dtype)[0][i].item<float>(), 2.0f * static_cast<float>(q) - 3.0f);
    }
    EXPECT_EQ(file.tensor("f16", dtype).sum().item<float>(), 3.0f);
    EXPECT_EQ(file.tensor("bf16", dtype).sum().item<float>(), 3.0f);
    EXPECT_EQ(file.tensor("f32", dtype).sizes(), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(file.tensor("f32", dtype)[1][2].item<float>(), 6.0f);
  }
  const std::string message = message_of([&] { file.tensor("iq1_s"); });
  EXPECT_NE(message.find("IQ1_S"), std::string::npos) << message;
  EXPECT_NE(message.find("Q4_1, Q5_0"), std::string::npos) << message;
  EXPECT_NE(message_of([&] { file.tensor("q8", at::kDouble); }).find("float32"), std::string::npos);
}

Gguf small_model(const std::string& arch) {
  return Gguf()
      .str("general.architecture", arch)
      .u32(arch + ".block_count", 2)
      .u32(arch + ".context_length", 128)
      .u32(arch + ".embedding_length", 16)
      .u32(arch + ".feed_forward_length", 24)
      .u32(arch + ".attention.head_count", 2)
      .u32(arch + ".vocab_size", 10)
      .f32(arch + ".attention.layer_norm_rms_epsilon", 1e-6f)
      .tensor("token_embd.weight", {16, 1}, 0, std::string(64, '\0'));
}

Json config_from(const TempFolder& folder, const Gguf& gguf) {
  put_file(folder / "m.gguf", gguf.bytes());
  return config_of_gguf(GgufFile(folder / "m.gguf"));
}

TEST(GgufModel, Config) {
  const TempFolder folder;
  const Json llama =
      config_from(folder, small_model("llama").u32("llama.rope.dimension_count", 8).f32("llama.rope.freq_base", 5e5f));
  EXPECT_EQ(llama.at<std::string>("model_type"), "llama");
  EXPECT_EQ(llama.at<int64_t>("num_hidden_layers"), 2);
  EXPECT_EQ(llama.at<int64_t>("num_key_value_heads"), 2);  // absent: as many as heads
  EXPECT_EQ(llama.at<int64_t>("head_dim"), 8);
  EXPECT_EQ(llama.at<double>("rope_theta"), 5e5);
  EXPECT_TRUE(llama.at<bool>("tie_word_embeddings"));
  EXPECT_FALSE(llama.has("rope_scaling"));
  const Json qwen = config_from(folder, small_model("qwen3")
                                            .u32("qwen3.attention.key_length", 32)
                                            .u32("qwen3.attention.value_length", 32)
                                            .u32("qwen3.attention.head_count_kv", 1)
                                            .str("qwen3.rope.scaling.type", "yarn")
                                            .f32("qwen3.rope.scaling.factor", 4)
                                            .u32("qwen3.rope.scaling.original_context_length", 32)
                                            .tensor("output.weight", {16, 1}, 0, std::string(64, '\0')));
  EXPECT_EQ(qwen.at<std::string>("model_type"), "qwen3");
  EXPECT_EQ(qwen.at<int64_t>("head_dim"), 32);
  EXPECT_EQ(qwen.at<int64_t>("num_key_value_heads"), 1);
  EXPECT_FALSE(qwen.at<bool>("tie_word_embeddings"));
  EXPECT_EQ(qwen.child("rope_scaling").at<std::string>("rope_type"), "yarn");
  EXPECT_EQ(qwen.child("rope_scaling").at<int64_t>("original_max_position_embeddings"), 32);
  const Json linear = config_from(
      folder, small_model("llama").str("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 2));
  EXPECT_EQ(linear.child("rope_scaling").at<double>("factor"), 2.0);
  const Json untyped = config_from(folder, small_model("llama").f32("llama.rope.scaling.factor", 2));
  EXPECT_EQ(untyped.child("rope_scaling").at<std::string>("rope_type"), "linear");  // as llama.cpp
}

TEST(GgufModel, ConfigRefuses) {
  const TempFolder folder;
  const auto message = [&](const Gguf& gguf) { return message_of([&] { config_from(folder, gguf); }); };
  EXPECT_NE(message(small_model("mamba")).find("'mamba'"), std::string::npos);
  EXPECT_NE(message(Gguf().u32("k", 1)).find("general.architecture"), std::string::npos);
  EXPECT_NE(message(Gguf().str("general.architecture", "llama")).find("llama.embedding_length"), std::string::npos);
  EXPECT_NE(message(small_model("llama").u32("llama.expert_count", 8)).find("expert_used_count"), std::string::npos);
  EXPECT_NE(message(small_model("llama").u32("llama.rope.dimension_count", 4).u32("llama.attention.key_length", 8))
                .find("width"),
            std::string::npos);
  EXPECT_NE(message(small_model("llama").str("llama.rope.scaling.type", "longrope")).find("factor"), std::string::npos);
  EXPECT_NE(message(small_model("llama").str("llama.rope.scaling.type", "longrope").f32("llama.rope.scaling.factor", 2))
                .find("longrope"),
            std::string::npos);
  EXPECT_NE(message(small_model("llama").tensor("rope_freqs.weight", {4}, 0, floats({1, 2, 3, 4}))).find("divisor"),
            std::string::npos);
  EXPECT_NE(message(small_model("llama").f32("llama.rope.freq_base", NAN)).find("finite"), std::string::npos);
  EXPECT_NE(message(small_model("llama").str("llama.rope.freq_base", "1e4")).find("a float"), std::string::npos);
  for (const char* key : {"attention.clamp_kqv", "rope.scaling.yarn_ext_factor", "rope.freq_base_swa", "new_key"}) {
    EXPECT_NE(message(small_model("llama").f32(cat("llama.", key), 2)).find(cat("llama.", key)), std::string::npos);
  }
  EXPECT_NE(message(small_model("llama").str("general.type", "adapter")).find("general.type"), std::string::npos);
  Gguf no_heads = small_model("qwen2");
  no_heads.keys.replace(no_heads.keys.find("head_count"), 10, "tail_count");
  EXPECT_NE(message(no_heads).find("qwen2.attention.head_count"), std::string::npos);
}

// The divisors that llama.cpp writes for Llama 3.1: found again as the parameters of config.json.
TEST(GgufModel, Llama3RopeScaling) {
  const TempFolder folder;
  const float theta = 500000.0f;
  std::string divisors;
  for (int i = 0; i < 32; ++i) {
    const double wavelength = 2 * M_PI * std::pow(theta, 2.0 * i / 64);
    const double smooth = (8192 / wavelength - 1) / 3;
    const double between = 1 / ((1 - smooth) / 32 + smooth);
    divisors += little_endian(static_cast<float>(wavelength < 2048 ? 1 : wavelength > 8192 ? 32 : between));
  }
  const Json config = config_from(folder, small_model("llama")
                                              .u32("llama.rope.dimension_count", 64)
                                              .f32("llama.rope.freq_base", theta)
                                              .tensor("rope_freqs.weight", {32}, 0, divisors));
  EXPECT_EQ(config.child("rope_scaling").at<std::string>("rope_type"), "llama3");
  EXPECT_EQ(config.child("rope_scaling").at<double>("factor"), 32.0);
  EXPECT_EQ(config.child("rope_scaling").at<double>("high_freq_factor"), 4.0);
}

TEST(GgufModel, Vocabulary) {
  const TempFolder folder;
  const std::string tokens = little_endian<uint32_t>(8) + little_endian<uint64_t>(2) + text("x") + text("y");
  const auto message = [&](Gguf gguf) {
    gguf.str("tokenizer.ggml.model", "llama").key_bytes("tokenizer.ggml.tokens", 9, tokens);
    put_file(folder / "v.gguf", gguf.bytes());
    return message_of([&] { vocabulary_from_gguf(GgufFile(folder / "v.gguf")); });
  };
  const std::string types = little_endian<uint32_t>(5), scores = little_endian<uint32_t>(6);
  const auto list = [](uint64_t n) { return little_endian(n); };
  EXPECT_EQ(message(small_model("llama")), "no error");
  EXPECT_EQ(message(small_model("llama").u32("tokenizer.ggml.bos_token_id", 1)), "no error");
  EXPECT_NE(message(small_model("llama").u32("tokenizer.ggml.bos_token_id", 2)).find("below 2"), std::string::npos);
  EXPECT_NE(message(small_model("llama").key_bytes("tokenizer.ggml.scores", 9, scores + list(1) + floats({1})))
                .find("2 values"),
            std::string::npos);
  EXPECT_NE(
      message(small_model("llama").key_bytes("tokenizer.ggml.token_type", 9,
                                             types + list(2) + little_endian<int32_t>(1) + little_endian<int32_t>(7)))
          .find("from 0 to 6"),
      std::string::npos);
  EXPECT_NE(message(small_model("llama").u32("tokenizer.ggml.add_bos_token", 1)).find("a bool"), std::string::npos);
}

// What a model of the file's family makes of its tensors.
std::unique_ptr<const Checkpoint> in_model_terms_of(const TempFolder& folder, const Gguf& gguf) {
  put_file(folder / "m.gguf", gguf.bytes());
  const Json config = config_of_gguf(GgufFile(folder / "m.gguf"));
  CausalLM model(family_of(config), config);
  return in_model_terms(open_checkpoint(folder.path(), "m.gguf"), model.family().gguf_rules(model.config()), model);
}

TEST(GgufModel, Names) {
  const TempFolder folder;
  const std::vector<std::pair<std::string, std::string>> names = {
      {"output.weight", "lm_head.weight"},
      {"blk.17.attn_q_norm.weight", "model.layers.17.self_attn.q_norm.weight"},
      {"blk.0.attn_v.bias", "model.layers.0.self_attn.v_proj.bias"},
      {"blk.1.ffn_gate.weight", "model.layers.1.mlp.gate_proj.weight"},
      {"blk.x.attn_q.weight", "blk.x.attn_q.weight"},  // unknown: stays, and no model has it
      {"blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_exps.weight"},
      {"blk.*.attn_q.weight", "blk.*.attn_q.weight"},
      {"blk.12345678901234567890.attn_q.weight", "blk.12345678901234567890.attn_q.weight"},
      {"blk..attn_q.weight", "blk..attn_q.weight"},
      {"rope", "rope"},
  };
  Gguf gguf = small_model("qwen3");
  for (const auto& [name, hf] : names) gguf.tensor(name, {16, 1}, 0, std::string(64, '\0'));
  std::vector<std::string> want = {"model.embed_tokens.weight"};
  for (const auto& [name, hf] : names) want.push_back(hf);
  EXPECT_EQ(in_model_terms_of(folder, gguf)->names(), want);
  const auto twice = message_of([&] {
    in_model_terms_of(folder, small_model("qwen3").tensor("model.embed_tokens.weight", {1}, 0, floats({1})));
  });
  EXPECT_NE(twice.find("one tensor for 'model.embed_tokens.weight'"), std::string::npos) << twice;
}

// Llama's q and k rows come back in half-split order; Qwen3's never left it.
TEST(GgufModel, RotaryRows) {
  const TempFolder folder;
  const std::string rows = floats({0, 1, 2, 3, 4, 5, 6, 7});  // 2 heads of 4 rows, 1 column
  for (const char* arch : {"llama", "qwen3"}) {
    const auto checkpoint = in_model_terms_of(folder, small_model(arch).tensor("blk.0.attn_q.weight", {1, 8}, 0, rows));
    const at::Tensor q = checkpoint->tensor("model.layers.0.self_attn.q_proj.weight", at::kFloat);
    const std::vector<float> got(q.const_data_ptr<float>(), q.const_data_ptr<float>() + 8);
    const std::vector<float> half_split = {0, 2, 1, 3, 4, 6, 5, 7}, same = {0, 1, 2, 3, 4, 5, 6, 7};
    EXPECT_EQ(got, std::string(arch) == "llama" ? half_split : same) << arch;
  }
  for (const int64_t heads : {int64_t{INT64_MAX}, int64_t{0}, int64_t{3}}) {
    const auto message = message_of([&] { half_split_rows(at::zeros({8, 1}), heads); });
    EXPECT_NE(message.find("heads of even width"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace hotswap
