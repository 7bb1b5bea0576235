#include "hotswap/hub/package/digest.h"

#include <nlohmann/json.hpp>

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;
using Ordered = nlohmann::ordered_json;

constexpr const char* kHello = "uU0nuZNNPgilLlLX2n2r+sSE7+N6U4DukIj3rOLvzek=";  // sha256("hello world")
constexpr const char* kEmpty = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";

Ordered minimal() {
  return Ordered::parse(R"({"name": "rms-norm", "id": "_rms_norm_cpu_abc1234", "version": 1, "license": "apache-2.0",
                            "python-depends": [], "backend": {"type": "cuda"}})");
}
using Edit = std::function<void(Ordered&)>;
KernelMetadata parsed(const Edit& edit = [](Ordered&) {}) {
  Ordered json = minimal();
  edit(json);
  return parse_metadata(json.dump(), "metadata.json");
}

TEST(Metadata, EveryField) {
  const KernelMetadata m = parsed([](Ordered& j) {
    j["kernel-depends"] = {{{"repo-id", "org/a"}, {"version", 2}}, {{"repo-id", "org/b"}, {"revision", "main"}}};
    j["python-depends"] = {"einops"};
    j["backend"]["archs"] = {"9.0+PTX", "10.0f"};
    j["upstream"] = "https://github.com/org/repo";
    j["source"] = "git@github.com:org/repo.git";
    j["digest"] = {{"algorithm", "sha256"}, {"files", {{"a/b.py", kHello}}}};
    j["provenance"] = {{"kernel-builder", {{"version", "0.17"}, {"sha", std::string(40, 'a')}, {"dirty", false}}},
                       {"kernel", {{"commit", std::string(64, 'b')}, {"dirty", true}}}};
    j["python-depends-backends"] = Ordered::object();  // unknown keys pass
  });
  EXPECT_EQ(m.python_name(), "rms_norm");
  EXPECT_EQ(m.kernel_depends.at(0).version, 2);
  EXPECT_EQ(m.kernel_depends.at(1).revision, "main");
  EXPECT_EQ(m.archs, (std::vector<std::string>{"9.0+PTX", "10.0f"}));
  EXPECT_EQ(m.digests->files.at("a/b.py"), kHello);
  EXPECT_EQ(m.provenance->builder_commit, std::string(40, 'a'));
  EXPECT_EQ(m.dirty(), std::vector<std::string>{"kernel source"});
  EXPECT_FALSE(parsed().digests);
  EXPECT_TRUE(parsed().dirty().empty());
}

TEST(Metadata, BadFieldsAreRefused) {
  struct Row {
    const char* what;
    Edit edit;
    const char* says;
  };
  const auto drop = [](const char* key) { return [key](Ordered& j) { j.erase(key); }; };
  const auto set = [](const char* key, Ordered value) { return [=](Ordered& j) { j[key] = value; }; };
  const std::string commit(40, 'a');
  const std::vector<Row> table = {
      {"no name", drop("name"), "name"},
      {"no id", drop("id"), "id"},
      {"no version", drop("version"), "version"},
      {"no license", drop("license"), "license"},
      {"no python-depends", drop("python-depends"), "python-depends"},
      {"no backend", drop("backend"), "backend"},
      {"name with _", set("name", "rms_norm"), "package name"},
      {"name of one letter", set("name", "a"), "package name"},
      {"name that ends in -", set("name", "a-"), "package name"},
      {"name that starts with a digit", set("name", "1a"), "package name"},
      {"name of a megabyte", set("name", std::string(1 << 20, 'a')), "package name"},
      {"id that leaves", set("id", "../x"), "identifier"},
      {"id of a megabyte", set("id", std::string(1 << 20, 'a')), "identifier"},
      {"negative version", set("version", -1), "version >= 0"},
      {"unknown backend", set("backend", {{"type", "quantum"}}), "quantum"},
      {"depends on both", set("kernel-depends", {{{"repo-id", "a/b"}, {"version", 1}, {"revision", "x"}}}),
       "exactly one"},
      {"depends on neither", set("kernel-depends", {{{"repo-id", "a/b"}}}), "exactly one"},
      {"unknown key of a dependency", set("kernel-depends", {{{"repo-id", "a/b"}, {"version", 1}, {"x", 1}}}), "'x'"},
      {"upstream by ftp", set("upstream", "ftp://x/y"), "git URL"},
      {"source of a path", set("source", "/tmp/x"), "git URL"},
      {"source with a blank", set("source", "https://x/y z"), "git URL"},
      {"algorithm", set("digest", {{"algorithm", "md5"}, {"files", Ordered::object()}}), "sha256 or sha512"},
      {"sha512 of a sha256", set("digest", {{"algorithm", "sha512"}, {"files", {{"a", kHello}}}}),
       "base64 of a sha512"},
      {"hash without padding", set("digest", {{"algorithm", "sha256"}, {"files", {{"a", std::string(44, 'A')}}}}),
       "base64"},
      {"file above", set("digest", {{"algorithm", "sha256"}, {"files", {{"a/../../b", kHello}}}}),
       "inside the package"},
      {"commit alone", set("provenance", {{"kernel-builder", {{"version", "1"}, {"commit", commit}}}}), "dirty"},
      {"dirty alone", set("provenance", {{"kernel-builder", {{"version", "1"}, {"dirty", true}}}}), "sha"},
      {"short commit", set("provenance", {{"kernel-builder", {{"version", "1"}, {"commit", "abc"}, {"dirty", true}}}}),
       "40 or 64"},
      {"provenance without the builder", set("provenance", {{"kernel", {{"commit", commit}, {"dirty", true}}}}),
       "kernel-builder"},
      {"empty kernel source",
       set("provenance", {{"kernel-builder", {{"version", "1"}}}, {"kernel", Ordered::object()}}), "commit and dirty"},
  };
  for (const Row& row : table) {
    const std::string text = message_of([&] { parsed(row.edit); });
    EXPECT_NE(text.find(row.says), text.npos) << row.what << ": " << text;
    EXPECT_LT(text.size(), 1000u) << row.what;
  }
}

TEST(Metadata, GitUrlsAndPaths) {
  for (const char* good : {"https://a/b", "http://a", "git://a/b", "ssh://git@a/b", "git+ssh://a/b", "git+https://a/b",
                           "git+http://a/b", "git@github.com:org/x.git"}) {
    EXPECT_TRUE(is_git_url(good)) << good;
  }
  for (const char* bad :
       {"", "a", "file:///x", "https://", "https:///x", "@a:b", "a@:b", "a@b:", "a@b", "javascript:x"}) {
    EXPECT_FALSE(is_git_url(bad)) << bad;
  }
  for (const char* good : {"a", "a/b.so", ".hidden", "a..b", "..a/b"}) EXPECT_TRUE(is_inside(good)) << good;
  for (const char* bad : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "C:x", "\\\\host\\x", "a/./b"}) {
    EXPECT_FALSE(is_inside(bad)) << bad;
  }
  EXPECT_FALSE(is_inside(std::string_view("a\0b", 3)));
}

TEST(Metadata, EveryBackendAndDigest) {
  for (const char* type : {"cann", "cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu"}) {
    EXPECT_EQ(parsed([&](Ordered& j) { j["backend"] = {{"type", type}, {"archs", {"gfx942"}}}; }).backend, type);
  }
  for (const char* type : {"npu", "mps", "CPU", "", "universal"}) {
    EXPECT_NE(message_of([&] { parsed([&](Ordered& j) { j["backend"]["type"] = type; }); }), "no error") << type;
  }
  const std::string sha512 = "MJ7MSJwS1utMxA9QyQLytNDtd+5RGnx6m808qG1M2G+YndNbxf9JlnDaNCVbRbDP2DDoH2Bdz33FVC6TrpzXbw==";
  EXPECT_EQ(parsed([&](Ordered& j) {
              j["digest"] = {{"algorithm", "sha512"}, {"files", {{"a", sha512}}}};
            }).digests->algorithm,
            "sha512");
  const auto dirty = parsed([](Ordered& j) {
    const Ordered changed = {{"commit", std::string(40, 'a')}, {"dirty", true}};
    j["provenance"] = {{"kernel-builder", changed}, {"kernel", changed}};
    j["provenance"]["kernel-builder"]["version"] = "0.17";
  });
  EXPECT_EQ(dirty.dirty(), (std::vector<std::string>{"kernel source", "kernel-builder"}));
}

// The whole table, and each name under every backend that it is not for.
TEST(Metadata, PythonRequirements) {
  const std::map<std::pair<std::string, std::string>, std::string> table = {
      {{"einops", ""}, "einops"},          {{"helion", ""}, "helion"},
      {{"tvm-ffi", ""}, "apache-tvm-ffi"}, {{"nvidia-cutlass-dsl", "cuda"}, "nvidia-cutlass-dsl"},
      {{"nki", "neuron"}, "nki"},          {{"onednn", "xpu"}, "onednn-devel"}};
  for (const auto& [key, pip] : table) {
    for (const char* backend : {"cann", "cpu", "cuda", "metal", "neuron", "rocm", "tpu", "xpu"}) {
      const bool fits = key.second.empty() || key.second == backend;
      EXPECT_EQ(python_requirement(key.first, backend), fits ? std::optional(pip) : std::nullopt)
          << key.first << backend;
    }
  }
  EXPECT_FALSE(python_requirement("requests", "cuda"));
}

TEST(Digest, Vectors) {
  TempFolder folder;
  folder.write("hello.txt", "hello world");
  folder.write("sub/empty", "");
  const FileDigests digests = hash_variant(folder.path());
  EXPECT_EQ(digests.algorithm, "sha256");
  EXPECT_EQ(digests.files, (std::map<std::string, std::string>{{"hello.txt", kHello}, {"sub/empty", kEmpty}}));
  EXPECT_EQ(hash_variant(folder.path(), "sha512").files.at("hello.txt"),
            "MJ7MSJwS1utMxA9QyQLytNDtd+5RGnx6m808qG1M2G+YndNbxf9JlnDaNCVbRbDP2DDoH2Bdz33FVC6TrpzXbw==");
  EXPECT_NE(message_of([&] { hash_variant(folder.path(), "md5"); }), "no error");
}

TEST(Digest, WhatIsLeftOut) {
  TempFolder folder;
  for (const char* name :
       {"metadata.json", "metadata.json.sigstore", "a.pyc", "x/b.pyc", "__pycache__/c.txt", "x/__pycache__/y/d",
        "x/metadata.json", "x/metadata.json.sigstore", "my__pycache__file", "a.py"}) {
    folder.write(name, "hello world");
  }
  std::vector<std::string> names;
  for (const auto& [name, hash] : hash_variant(folder.path()).files) names.push_back(name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"a.py", "my__pycache__file", "x/metadata.json", "x/metadata.json.sigstore"}));
}

TEST(Digest, DifferencesInTheOrderOfTheReference) {
  const FileDigests expected{.algorithm = "sha256", .files = {{"b", "1"}, {"a", "1"}, {"c", "1"}}};
  const FileDigests got{.algorithm = "sha256", .files = {{"b", "2"}, {"c", "1"}, {"0", "1"}}};
  EXPECT_EQ(compare_digests(expected, got),
            (std::vector<std::string>{"Missing file: a", "File hash mismatch for b: expected: 1, got: 2",
                                      "Unknown file: 0"}));
  EXPECT_EQ(compare_digests(expected, {.algorithm = "sha512", .files = {}}),
            std::vector<std::string>{"Algorithm mismatch: expected: SHA256, got: SHA512"});
  EXPECT_TRUE(compare_digests(expected, expected).empty());
}

TEST(Digest, LinksAreFollowedToFilesAndNowhereElse) {
  TempFolder folder, outside;
  const fs::path blob = outside.write("blob", "hello world");
  outside.write("code/evil.py", "x");
  fs::create_symlink(blob, folder.path() / "a.so");  // as the Hub's cache does
  EXPECT_EQ(hash_variant(folder.path()).files.at("a.so"), kHello);
  const FileDigests expected{.algorithm = "sha256", .files = {{"a.so", kHello}}};
  verify_digests(folder.path(), expected);

  fs::create_directory_symlink(outside.path() / "code", folder.path() / "code");
  fs::create_symlink("/nowhere/at/all", folder.path() / "gone");
  expect_has(message_of([&] { verify_digests(folder.path(), expected); }), {"Unknown file: code; Unknown file: gone"});
  expect_has(message_of([&] { hash_variant(folder.path()); }), {"'code'", "link to a folder"});
}

TEST(Digest, WrittenIntoMetadata) {
  TempFolder folder;
  Ordered json = minimal();
  json["zzz"] = "stays";
  json["digest"] = {{"algorithm", "sha512"}, {"files", Ordered::object()}};
  folder.write("metadata.json", json.dump());
  folder.write("hello.txt", "hello world");
  EXPECT_EQ(write_digests(folder.path()), 1u);
  const std::string text = read_file(folder.path() / "metadata.json");
  const KernelMetadata m = parse_metadata(text, "metadata.json");
  EXPECT_EQ(m.digests, (FileDigests{.algorithm = "sha256", .files = {{"hello.txt", kHello}}}));
  EXPECT_EQ(Ordered::parse(text)["zzz"], "stays");
  EXPECT_EQ(text.substr(0, 26), "{\n  \"name\": \"rms-norm\",\n  ");
  verify_digests(folder.path(), *m.digests);
  folder.write("hello.txt", "hello World");
  expect_has(message_of([&] { verify_digests(folder.path(), *m.digests); }), {"File hash mismatch for hello.txt"});
}

}  // namespace
}  // namespace hotswap
