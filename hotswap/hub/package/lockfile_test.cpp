#include "hotswap/hub/package/lockfile.h"

#include "hotswap/base/test_support.h"
#include "hotswap/hub/project.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

const std::string kCommit(40, 'a');
// __init__.py (empty, git), a.so ("hello world", LFS), layers/x.py ("x=1\n", git)
constexpr const char* kVector = "sha256-527d1c1f7247b0721cb77855369d3b902d860356db021dbeab5bbd1b147d672a";
constexpr const char* kEmptyBlob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";
constexpr const char* kHelloSha256 = "b94d27b9934d3e08a52e52d7da7dabfac484efe37a5380ee9088f7ace2efcde9";

void write_vector(const TempFolder& folder, const std::string& variant) {
  folder.write(variant + "/__init__.py", "");
  folder.write(variant + "/a.so", "hello world");
  folder.write(variant + "/layers/x.py", "x=1\n");
  folder.write(variant + "/__pycache__/x.pyc", "no matter");
}
TreeEntry listed(const std::string& path, const std::string& oid, const std::string& sha256) {
  return {.path = path, .oid = oid, .sha256 = sha256};
}
bool so_is_lfs(const std::string& path) { return path.ends_with(".so"); }

TEST(LockHash, Vector) {
  TempFolder folder;
  write_vector(folder, "torch-cpu");
  EXPECT_EQ(hash_locked_variant(folder.path() / "torch-cpu", so_is_lfs), kVector);
  EXPECT_NE(hash_locked_variant(folder.path() / "torch-cpu", [](const std::string&) { return false; }), kVector);
}

TEST(LockHash, OfATreeAsTheHubListsIt) {
  const std::string x = "bafc5d9a1a836cea09dadcec13e66fe498cd997a";  // "x=1\n"
  const std::vector<TreeEntry> tree = {listed("README.md", x, ""),
                                       listed("build/torch-cpu/layers/x.py", x, ""),
                                       listed("build/torch-cpu/a.so", x, kHelloSha256),
                                       listed("build/torch-cpu/__init__.py", kEmptyBlob, ""),
                                       listed("build/torch-cpu/__pycache__/x.cpython-312.pyc", x, ""),
                                       listed("build/tvm-ffi01-cpu-x86_64-linux/a.so", x, kHelloSha256),
                                       listed("build/loose.txt", x, "")};
  const auto hashes = variant_hashes(tree);
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes.at("torch-cpu"), kVector);
  EXPECT_TRUE(hashes.contains("tvm-ffi01-cpu-x86_64-linux"));  // the reference leaves these unlocked
  expect_has(message_of([] { variant_hashes({listed("build/v/a", "zz", "")}); }), {"40 or 64 hex digits"});
}

TEST(LockHash, TheCachesLinksSayWhatLfsHolds) {
  TempFolder folder;
  folder.write(cat("blobs/", kHelloSha256), "hello world");
  folder.write(cat("blobs/", kEmptyBlob), "");
  const fs::path variant = folder.path() / "snapshots" / "torch-cpu";
  fs::create_directories(variant);
  fs::create_symlink(fs::path("../../blobs") / kHelloSha256, variant / "a.so");
  fs::create_symlink(fs::path("../../blobs") / kEmptyBlob, variant / "__init__.py");
  const auto by_tree = variant_hashes(
      {listed("build/torch-cpu/a.so", kCommit, kHelloSha256), listed("build/torch-cpu/__init__.py", kEmptyBlob, "")});
  EXPECT_EQ(hash_locked_variant(variant), by_tree.at("torch-cpu"));

  const LockedKernel locked{
      .dependency = {.repo = "org/k"}, .commit = kCommit, .variants = by_tree, .hash = {}, .path = {}};
  verify_locked_variant(locked, variant);
  folder.write(cat("blobs/", kHelloSha256), "hello World");  // a blob whose name is not its hash
  expect_has(message_of([&] { verify_locked_variant(locked, variant); }),
             {"as they were locked", "nothing of it was run"});
  fs::create_directory(variant.parent_path() / "other");
  expect_has(message_of([&] { verify_locked_variant(locked, variant.parent_path() / "other"); }),
             {"in the lock", "torch-cpu"});
  folder.write("snapshots/torch-cpu/own", "x");
  expect_has(message_of([&] { hash_locked_variant(variant); }), {"a file of its own"});
}

const std::string kVariants = cat(R"([
  {
    "repo_id": "org/b",
    "sha": ")",
                                  kCommit, R"(",
    "variants": {
      "torch-cpu": {
        "hash": ")",
                                  kVector, R"(",
        "hash_type": "git_lfs_concat"
      }
    }
  }
])");
const std::string kDependencies = cat(R"([
  {
    "dependency": {
      "repo-id": "org/a",
      "version": 2
    },
    "lock": {
      "commit": ")",
                                      kCommit, R"("
    }
  },
  {
    "dependency": {
      "repo-id": "org/a",
      "revision": "main"
    },
    "lock": {
      "commit": ")",
                                      kCommit, R"(",
      "hash": "sha256-nix"
    }
  },
  {
    "dependency": {
      "repo-id": "org/b",
      "version": 1
    },
    "path": "/nix/store/x"
  }
])");

TEST(Lockfile, BothFormsGoThereAndBack) {
  for (const std::string& text : {kVariants, kDependencies, std::string("[]")}) {
    EXPECT_EQ(Lockfile::parse(text, "kernels.lock").text(), text);
  }
  const Lockfile variants = Lockfile::parse(kVariants, "kernels.lock");
  EXPECT_EQ(variants.at("org/b").variants.at("torch-cpu"), kVector);
  expect_has(message_of([&] { variants.at("org/x"); }), {"Kernel `org/x` is not locked", "org/b"});
  Lockfile other = Lockfile::parse(kDependencies, "kernels.lock");
  EXPECT_EQ(other.at("org/b").path, "/nix/store/x");
  expect_has(message_of([&] { other.at("org/a"); }), {"org/a@v2 and org/a@main"});
  std::reverse(other.kernels.begin(), other.kernels.end());
  EXPECT_EQ(other.text(), kDependencies);  // sorted, whatever the order was

  TempFolder folder;
  variants.write(folder.path() / "kernels.lock");
  EXPECT_EQ(Lockfile::read(folder.path() / "kernels.lock").text(), kVariants);
}

TEST(Lockfile, RefusesTheRest) {
  const auto edited = [](std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  const std::string upper(40, 'A');
  EXPECT_EQ(Lockfile::parse(edited(kVariants, kCommit, upper), "l").kernels[0].commit, kCommit);
  const std::pair<std::string, const char*> table[] = {
      {"{}", "array"},
      {"[1]", "object"},
      {edited(kVariants, kCommit, "abc"), "a whole commit"},
      {edited(kVariants, "git_lfs_concat", "md5"), "git_lfs_concat"},
      {edited(kVariants, "sha256-5", "sha256-X"), "64 hex digits"},
      {edited(kVariants, "\"sha\"", "\"extra\": 1, \"sha\""), "'extra'"},
      {edited(kVariants, "org/b", "../b"), "repository's name"},
      {edited(kDependencies, "\"version\": 2", "\"version\": -2"), "version >= 0"},
      {edited(kDependencies, "\"version\": 2", "\"version\": 2, \"revision\": \"x\""), "exactly one of version"},
      {edited(kDependencies, "\"path\"", "\"lock\": {}, \"path\""), "exactly one of lock and path"},
      {edited(kDependencies, "\"commit\"", "\"frobnicate\": 1, \"commit\""), "frobnicate"},
      {edited(kDependencies, "\"revision\": \"main\"", "\"version\": 2"), "each dependency once"},
      {cat("[", kVariants.substr(1, kVariants.size() - 2), ",", kDependencies.substr(1)), "one form"},
  };
  for (const auto& [text, says] : table)
    expect_has(message_of([&given = text] { Lockfile::parse(given, "kernels.lock"); }), {says});
}

TEST(Dependencies, OfPythonAndOfCppProjects) {
  const auto names = [](const std::string& file, const std::string& text) {
    TempFolder folder;
    folder.write(file, text);
    std::vector<std::string> all;
    for (const Dependency& d : Project::read(folder.path()).dependencies) all.push_back(d.str());
    return all;
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(
      names("pyproject.toml", "[project]\nname = 'x'\n[tool.kernels.dependencies]\n\"org/b\" = 1\n\"org/a\" = 0\n"),
      (Names{"org/a@v0", "org/b@v1"}));
  EXPECT_EQ(names("hotswap.toml",
                  "[dependencies]\n\"a/a\" = 1\n\"a/b\" = \">=1,<3\"\n\"a/c\" = {revision = 'main'}\n"
                  "\"a/d\" = {version = 2}\n\"a/e\" = 'v7'\n"),
            (Names{"a/a@v1", "a/b@>=1,<3", "a/c@main", "a/d@v2", "a/e@v7"}));
  for (const char* none : {"[project]\nname='x'\n", "[tool.ruff]\nline-length = 9\n", "[tool.kernels]\nx = 1\n"}) {
    EXPECT_EQ(names("pyproject.toml", none), Names{}) << none;
  }
  EXPECT_EQ(names("hotswap.toml", ""), Names{});
  for (const char* bad :
       {"\"a\" = 1", "\"a/b\" = -1", "\"a/b\" = true", "\"a/b\" = {}", "\"a/b\" = 'a..b'", "\"a/b\" = '>=x'",
        "\"a/b\" = {version = 1, revision = 'x'}", "\"a/b\" = {versoin = 1}", "\"a/b\" = ''"}) {
    EXPECT_NE(message_of([&] { names("hotswap.toml", cat("[dependencies]\n", bad)); }), "no error") << bad;
  }
  for (const char* bad : {"\"a/b\" = '>=1'", "\"a/b\" = {version = 1}", "\"a/b\" = -1", "\"a\" = 1"}) {
    EXPECT_NE(message_of([&] { names("pyproject.toml", cat("[tool.kernels.dependencies]\n", bad)); }), "no error")
        << bad;
  }
}

}  // namespace
}  // namespace hotswap
