#include "hotswap/models/formats/safetensors.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include "hotswap/base/sha256.h"
#include "hotswap/models/test_files.h"

namespace hotswap {
namespace {

using test_support::message_of;
using test_support::put_file;
using test_support::TempFolder;

std::string bytes_of(const std::string& header, size_t data_size) {
  return test_support::little_endian<uint64_t>(header.size()) + header + std::string(data_size, '\0');
}

struct BadSafetensors {
  const char* name;
  std::string bytes;
  const char* says;  // part of the message
};

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

std::string with_unknown_key(const std::string& value) {
  return R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":)" + value + "}}";
}

std::vector<BadSafetensors> bad_safetensors() {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::string deep = R"({"__metadata__":)";
  for (int i = 0; i < 100'000; ++i) deep += "[";
  return {
      {"empty", "", "at least 8 bytes"},
      {"seven_bytes", "1234567", "at least 8 bytes"},
      {"header_past_the_end", test_support::little_endian<uint64_t>(100) + "{}", "a header of 100 bytes"},
      {"header_length_2_64", test_support::little_endian<uint64_t>(UINT64_MAX) + "{}", "at most 100000000"},
      {"header_length_above_the_cap", test_support::little_endian<uint64_t>(100'000'001) + "{}", "at most 100000000"},
      {"no_header", bytes_of("", 8), "begins with '{'"},
      {"header_is_a_list", bytes_of("[1,2]", 0), "begins with '{'"},
      {"header_begins_with_a_byte_order_mark", bytes_of("\xef\xbb\xbf{}", 0), "begins with '{'"},
      {"not_json", bytes_of(R"({"a":)", 0), "valid JSON"},
      {"bad_utf8", bytes_of("{\"\xff\xfe\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8),
       "valid JSON"},
      {"nested_100000_deep", bytes_of(deep, 0), "nested"},
      {"truncated_data", bytes_of(good, 7), "ends at 8"},
      {"bytes_after_the_last_tensor", bytes_of(good, 9), "belong to no tensor"},
      {"data_without_tensors", bytes_of("{}", 8), "belong to no tensor"},
      {"hole",
       bytes_of(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}})",
           5),
       "a hole"},
      {"hole_at_the_start", bytes_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3), "a hole"},
      {"overlap",
       bytes_of(
           R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[2,5]}})",
           5),
       "overlap"},
      {"same_bytes_twice",
       bytes_of(
           R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
           3),
       "overlap"},
      {"duplicate_name",
       bytes_of(
           R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           2),
       "'a' twice"},
      {"duplicate_key", bytes_of(R"({"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1),
       "'dtype' twice"},
      {"shape_overflow",
       bytes_of(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})", 0),
       "fewer than 2^63"},
      {"overflow_to_the_right_size",
       bytes_of(R"({"a":{"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]}})", 8), "fewer than 2^63"},
      {"overflow_behind_a_zero",
       bytes_of(R"({"a":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})", 0),
       "fewer than 2^63"},
      {"extent_above_int64", bytes_of(R"({"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]}})", 8),
       "below 2^63"},
      {"extent_above_uint64",
       bytes_of(R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,8]}})", 8), "integers"},
      {"negative_extent", bytes_of(R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,8]}})", 8), "integers"},
      {"fractional_extent", bytes_of(R"({"a":{"dtype":"U8","shape":[2.0],"data_offsets":[0,2]}})", 2), "integers"},
      {"shape_is_no_list", bytes_of(R"({"a":{"dtype":"U8","shape":2,"data_offsets":[0,2]}})", 2), "a shape"},
      {"offsets_backwards", bytes_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[2,0]}})", 2),
       "data_offsets [2, 0]"},
      {"offsets_past_the_end", bytes_of(R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 2), "it ends at 9"},
      {"three_offsets", bytes_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2,2]}})", 2), "two data_offsets"},
      {"size_and_shape_differ", bytes_of(R"({"a":{"dtype":"F16","shape":[2],"data_offsets":[0,2]}})", 2), "4 bytes"},
      {"unknown_dtype", bytes_of(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8), "dtype 'F33'"},
      {"dtype_is_a_number", bytes_of(R"({"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}})", 8), "a dtype name"},
      {"missing_key", bytes_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "dtype, shape and data_offsets"},
      {"a_wrong_key", bytes_of(R"({"a":{"dtype":"F32","shape":[2],"offsets":[0,8]}})", 8),
       "dtype, shape and data_offsets"},
      {"nested_too_deep", bytes_of(with_unknown_key(nested(126)), 8), "nested"},
      {"entry_is_a_string", bytes_of(R"({"a":"F32"})", 8), "dtype, shape and data_offsets"},
      {"metadata_of_numbers", bytes_of(R"({"__metadata__":{"n":1}})", 0), "__metadata__.n"},
      {"metadata_of_null", bytes_of(R"({"__metadata__":{"n":null}})", 0), "__metadata__.n"},
      {"metadata_is_a_list", bytes_of(R"({"__metadata__":[]})", 0), "__metadata__ as an object"},
      {"metadata_is_text", bytes_of(R"({"__metadata__":"text"})", 0), "__metadata__ as an object"},
  };
}

TEST(Safetensors, RefusesBadFiles) {
  const TempFolder folder;
  for (const BadSafetensors& bad : bad_safetensors()) {
    put_file(folder / "bad.safetensors", bad.bytes);
    const std::string message = message_of([&] { SafetensorsFile file(folder / "bad.safetensors"); });
    EXPECT_NE(message.find(bad.says), std::string::npos) << bad.name << ": " << message;
    EXPECT_NE(message.find("bad.safetensors"), std::string::npos) << bad.name << ": " << message;
  }
}

// As safetensors 0.8.0 for Python reads them: the metadata is none, keys that an entry does not need are left alone.
TEST(Safetensors, ReadsWhatTheReferenceLibraryReads) {
  const TempFolder folder;
  const std::string entry = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  for (const std::string& header :
       {R"({"__metadata__":null,)" + entry + "}", R"({"__metadata__":{},)" + entry + "}", with_unknown_key("1"),
        with_unknown_key(R"({"of":["any",{"kind":null}]})"), with_unknown_key("99999999999999999999999"),
        with_unknown_key(nested(125)), " \n{" + entry + "}", "{" + entry + "} \t"}) {
    put_file(folder / "good.safetensors", bytes_of(header, 8));
    const SafetensorsFile file(folder / "good.safetensors");
    EXPECT_TRUE(at::equal(file.tensor("a"), at::zeros({2}))) << header;
    EXPECT_TRUE(file.metadata().empty()) << header;
  }
}

TEST(Safetensors, EveryCutAndEveryFlippedHeaderBitIsReadOrRefused) {
  const TempFolder folder;
  save_safetensors(folder / "good", {{"a", at::arange(6, at::kFloat)}, {"b", at::arange(3, at::kInt)}}, {{"k", "v"}});
  const std::string good = read_file(folder / "good");
  for (size_t size = 0; size < good.size(); ++size) {
    put_file(folder / "bad", good.substr(0, size));
    EXPECT_NE(message_of([&] { SafetensorsFile file(folder / "bad"); }), "no error") << "cut to " << size;
  }
  int read = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
    put_file(folder / "bad", flipped);
    try {
      const SafetensorsFile file(folder / "bad");
      for (const std::string& name : file.names()) read += file.tensor(name).sum().defined();
    } catch (const Error&) {
    }
  }
  EXPECT_GT(read, 0);  // a flipped bit in the data is still a tensor
}

TEST(Safetensors, BoolsAreZeroOrOne) {
  const TempFolder folder;
  std::string bytes = bytes_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  bytes.back() = 2;
  put_file(folder / "bool.safetensors", bytes);
  EXPECT_NE(message_of([&] { SafetensorsFile(folder / "bool.safetensors").tensor("a"); }).find("BOOL"),
            std::string::npos);
}

TEST(Safetensors, MisalignedAndEmptyTensorsAndScalars) {
  const TempFolder folder;
  const std::string header =
      R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"F32","shape":[2],"data_offsets":[1,9]},)"
      R"("e":{"dtype":"F32","shape":[0,7],"data_offsets":[9,9]},"s":{"dtype":"I64","shape":[],"data_offsets":[9,17]}})";
  const float values[] = {1.5f, -2.0f};
  const int64_t scalar = 1234567890123;
  std::string bytes = test_support::little_endian<uint64_t>(header.size()) + header + "\7";
  bytes.append(reinterpret_cast<const char*>(values), 8).append(reinterpret_cast<const char*>(&scalar), 8);
  put_file(folder / "odd.safetensors", bytes);
  const SafetensorsFile file(folder / "odd.safetensors");
  EXPECT_EQ(file.tensor("a").item<int>(), 7);
  EXPECT_EQ(file.tensor("b")[0].item<float>(), 1.5f);
  EXPECT_EQ(file.tensor("b")[1].item<float>(), -2.0f);
  EXPECT_EQ(file.tensor("e").sizes(), (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(file.tensor("s").dim(), 0);
  EXPECT_EQ(file.tensor("s").item<int64_t>(), scalar);
  EXPECT_NE(message_of([&] { file.tensor("x"); }).find("a tensor 'x'"), std::string::npos);
}

TEST(Safetensors, TensorsShareTheFileAndOutliveIt) {
  const TempFolder folder;
  const at::Tensor written = at::randn({33, 5});
  save_safetensors(folder / "f.safetensors", {{"w", written}});
  at::Tensor read;
  {
    const SafetensorsFile file(folder / "f.safetensors");
    read = file.tensor("w");
    EXPECT_EQ(read.const_data_ptr(), file.tensor("w").const_data_ptr());
  }
  save_safetensors(folder / "f.safetensors", {{"w", at::zeros({33, 5})}});  // by rename: the old bytes stay mapped
  EXPECT_TRUE(at::equal(read, written));
}

TEST(Safetensors, WriterRefuses) {
  const TempFolder folder;
  const at::Tensor t = at::zeros({2});
  EXPECT_NE(message_of([&] { save_safetensors(folder / "f", {{"a", t}, {"a", t}}); }).find("once"), std::string::npos);
  EXPECT_NE(message_of([&] {
              save_safetensors(folder / "f", {{"__metadata__", t}});
            }).find("__metadata__"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              save_safetensors(folder / "f", {{"a", at::Tensor()}});
            }).find("undefined"),
            std::string::npos);
  EXPECT_NE(message_of([&] {
              save_safetensors(folder / "f", {{"a", t.to(at::kMeta)}});
            }).find("meta"),
            std::string::npos);
  EXPECT_NE(message_of([&] { save_safetensors(folder / "f", {{"\xff", t}}); }).find("UTF-8"), std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Python writes files; what we read from them and write again must be the same bytes.
TEST(Safetensors, WritesTheBytesThatPythonWrites) {
  const TempFolder folder;
  const auto python = test_support::run_python(folder, R"(
import sys
try:
    import torch
    from safetensors.torch import save_file
except ImportError:
    sys.exit(77)
torch.manual_seed(0)
kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
         torch.uint8, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64,
         torch.complex64, torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
raw = lambda kind, *shape: (torch.randint(0, 2, shape).bool() if kind == torch.bool else
    torch.randint(0, 256, (*shape[:-1], shape[-1] * kind.itemsize), dtype=torch.uint8).view(kind))
every = {f"{i % 5}.{str(kind)[6:]}": raw(kind, 1 + i % 3, 5) for i, kind in enumerate(kinds)}
save_file(every, "every.safetensors", metadata={"format": "pt"})
save_file(every, "no_metadata.safetensors")
save_file({'quo"te\\': torch.ones(1), "tab\t\x01\x7f/": torch.ones(2), "unicode \u00e9\U0001F600": torch.ones(3),
           "scalar": torch.tensor(2.0), "empty": torch.zeros(0, 3), "": torch.ones(1)}, "names.safetensors")
save_file({}, "none.safetensors")
)");
  if (python.status == 77) GTEST_SKIP() << test_support::test_python() << " has no safetensors";
  ASSERT_EQ(python.status, 0) << python.output;
  for (const char* name : {"every", "no_metadata", "names", "none"}) {
    const auto theirs = folder / cat(name, ".safetensors"), ours = folder / "ours";
    const SafetensorsFile file(theirs);
    TensorMap tensors;
    for (const std::string& key : file.names()) tensors.insert(tensors.begin(), {key, file.tensor(key)});
    save_safetensors(ours, tensors, file.metadata());
    EXPECT_TRUE(read_file(ours) == read_file(theirs)) << name;
  }
}

TEST(Safetensors, TransformersModelRoundTrip) {
  if (test_support::no_transformers()) GTEST_SKIP() << *test_support::no_transformers();
  const auto model = test_support::made_data("models/golden_model.py") / "models/tiny/model.safetensors";
  const TempFolder folder;
  const SafetensorsFile file(model);
  TensorMap tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.tensor(name));
  save_safetensors(folder / "copy", tensors, file.metadata());
  EXPECT_EQ(sha256_file(folder / "copy"), sha256_file(model));
}

TEST(Safetensors, StridedTensorsAreWrittenDense) {
  const TempFolder folder;
  const at::Tensor base = at::arange(12, at::kFloat).view({3, 4});
  save_safetensors(folder / "f", {{"t", base.t()}, {"column", base.select(1, 1)}});
  const SafetensorsFile file(folder / "f");
  EXPECT_TRUE(at::equal(file.tensor("t"), base.t()));
  EXPECT_TRUE(at::equal(file.tensor("column"), base.select(1, 1)));
}

}  // namespace
}  // namespace hotswap
