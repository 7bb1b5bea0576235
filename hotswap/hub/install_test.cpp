// A built package in the cache: what is written, what is refused, and that nothing is visible before all is there.
#include "hotswap/hub/install.h"

#include "hotswap/base/test_support.h"
#include "hotswap/hub/get_kernel.h"
#include "hotswap/hub/hub.h"
#include "hotswap/hub/names/variant.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

constexpr const char* kCpuFolder = "torch-stable-abi210-cpu-x86_64-linux";
const Repo kInstalled{RepoType::kKernel, "acme/ab"};

std::string metadata_text(int64_t version) {
  return cat(R"({"name": "ab", "id": "_ab_)", version, R"(", "version": )", version,
             R"(, "license": "mit", "python-depends": [], "backend": {"type": "cpu"}})");
}

fs::path write_variant(const TempFolder& folder, const std::string& name, int64_t version, const std::string& init) {
  folder.write("ab/build/" + name + "/metadata.json", metadata_text(version));
  folder.write("ab/build/" + name + "/layers/a.py", "a = 1");
  const fs::path file = folder.write("ab/build/" + name + "/__init__.py", init);
  write_digests(file.parent_path());
  return file.parent_path();
}

HubOptions offline(const fs::path& cache) {
  return {.endpoint = "http://127.0.0.1:1", .cache = cache, .kernels_cache = cache, .offline = true, .progress = false};
}

TEST(Install, IsWhatADownloadLeaves) {
  const TempFolder folder, store;
  write_variant(folder, kCpuFolder, 1, "x = 1");
  write_variant(folder, "torch-universal", 1, "x = 2");
  folder.write("ab/build/torch-universal/__pycache__/a.pyc", "no");
  folder.write("ab/build/.staging-x/metadata.json", "{}");
  const HubCache cache(store.path(), true);
  const InstalledPackage done = install_package(cache, folder.path() / "ab", "acme/ab");
  EXPECT_EQ(done.variants, (std::vector<std::string>{kCpuFolder, "torch-universal"}));
  EXPECT_EQ(done.version, 1);
  EXPECT_EQ(done.replaced, "");
  const fs::path repo = store.path() / "kernels--acme--ab";
  EXPECT_EQ(read_file(repo / "refs/v1"), done.commit);
  const fs::path file = repo / "snapshots" / done.commit / "build" / kCpuFolder / "__init__.py";
  EXPECT_EQ(read_file(file), "x = 1");
  EXPECT_TRUE(fs::is_symlink(file)) << "a link into the blobs, as Python has it";
  EXPECT_FALSE(fs::exists(file.parent_path().parent_path() / "torch-universal/__pycache__"));

  Hub hub(offline(store.path()));
  EXPECT_EQ(hub.snapshot(kInstalled, "v1"), done.snapshot);
  EXPECT_EQ(hub.tree(kInstalled, "v1").size(), 6u);
  for (const char* name : {"acme/ab", "acme/ab@v1", "acme/ab@>=1,<2"}) {
    const HubKernel kernel = get_kernel(hub, {.ref = name, .system = {.torch = {{2, 11}}}});
    EXPECT_EQ(kernel.folder, file.parent_path()) << name << ": an offline host runs what is in its cache";
    EXPECT_TRUE(kernel.digest_checked);
  }

  // The same files behind serve-hub are the same commit.
  const TempFolder served;
  fs::create_directories(served.path() / "kernels/acme/ab/v1/build");
  for (const char* variant : {kCpuFolder, kForCudaTorch}) {
    fs::copy(folder.path() / "ab/build" / kCpuFolder, served.path() / "kernels/acme/ab/v1/build" / variant,
             fs::copy_options::recursive);
  }
  fs::remove_all(folder.path() / "ab/build/torch-universal");
  const InstalledPackage one = install_package(cache, folder.path() / "ab", "acme/ab");
  EXPECT_EQ(one.replaced, done.commit);
  HubServer server({.folder = served.path()});
  server.start();
  HubOptions options = offline(store.path());
  options.endpoint = server.url();
  options.offline = false;
  EXPECT_EQ(HubClient(options).commit(kInstalled, "v1"), one.commit);
  EXPECT_EQ(install_package(cache, folder.path() / "ab/build" / kCpuFolder, "acme/ab").commit, one.commit)
      << "a variant's folder itself";
}

// Python's `kernels` takes a CPU variant by no other name where torch was built for CUDA.
TEST(Install, TheCpuVariantIsAlsoForATorchOfCuda) {
  const TempFolder folder;
  write_variant(folder, kCpuFolder, 1, "x = 1");
  const auto variants = [&] { return read_built_package(folder.path() / "ab").variants; };
  const System torch_of_cuda{.torch = {{2, 11}}, .backend = *Backend::parse("cu130")};
  EXPECT_EQ(choose_variant(variants(), torch_of_cuda).chosen, "torch-cuda");
  EXPECT_EQ(choose_variant(variants(), {.torch = {{2, 11}}}).chosen, kCpuFolder);
  System no_python = torch_of_cuda;
  no_python.no_python = true;
  EXPECT_FALSE(choose_variant(variants(), no_python).chosen.has_value());

  const BuiltPackage built = read_built_package(folder.path() / "ab");
  ASSERT_TRUE(built.files.contains("build/torch-cuda/layers/a.py"));
  for (const char* name : {"/metadata.json", "/__init__.py", "/layers/a.py"}) {
    EXPECT_EQ(built.files.at(cat("build/torch-cuda", name)).etag(),
              built.files.at(cat("build/", kCpuFolder, name)).etag());
  }
  for (const char* enough : {"torch-stable-abi210-cu130-x86_64-linux", "torch-universal", "torch-cuda",
                             "torch-stable-abi212-cpu-x86_64-linux", "torch-stable-abi210-cpu-aarch64-linux"}) {
    const fs::path more = write_variant(folder, enough, 1, "x = 2");
    EXPECT_EQ(variants().size(), 2u) << enough << ": nothing is added";
    fs::remove_all(more);
  }
}

TEST(Install, HealsABlobThatWasBroken) {
  const TempFolder folder, store;
  write_variant(folder, kCpuFolder, 1, "x = 1");
  const HubCache cache(store.path(), true);
  const InstalledPackage done = install_package(cache, folder.path() / "ab", "acme/ab");
  const fs::path file = done.snapshot / "build" / kCpuFolder / "__init__.py";
  write_file(fs::canonical(file), "x = 9");
  EXPECT_EQ(install_package(cache, folder.path() / "ab", "acme/ab").commit, done.commit);
  EXPECT_EQ(read_file(file), "x = 1");
}

TEST(Install, WithoutLinks) {
  const TempFolder folder, store;
  write_variant(folder, kCpuFolder, 3, "x = 1");
  const InstalledPackage done = install_package(HubCache(store.path(), false), folder.path() / "ab", "acme/ab");
  EXPECT_FALSE(fs::is_symlink(done.snapshot / "build" / kCpuFolder / "__init__.py"));
  EXPECT_EQ(Hub(offline(store.path())).snapshot(kInstalled, "v3"), done.snapshot);
}

TEST(Install, RefusesAndLeavesNoName) {
  const TempFolder folder, store;
  const HubCache cache(store.path(), true);
  const auto why = [&](const std::string& name = "acme/ab") {
    std::string text = message_of([&] { install_package(cache, folder.path() / "ab", name); });
    EXPECT_FALSE(fs::exists(store.path() / "kernels--acme--ab/refs/v1"));
    return text;
  };
  fs::create_directories(folder.path() / "ab");
  expect_has(why(), {"a built package", "kernel build"});
  const fs::path variant = write_variant(folder, kCpuFolder, 1, "x = 1");
  expect_has(why("ab"), {"ORG/NAME"});
  EXPECT_NE(why("acme/../ab"), "no error");
  EXPECT_NE(why("../ab"), "no error");
  folder.write(cat("ab/build/", kCpuFolder, "/__init__.py"), "x = 2");
  expect_has(why(), {"File hash mismatch for __init__.py"});
  write_digests(variant);
  folder.write(cat("ab/build/", kCpuFolder, "/extra.py"), "");
  expect_has(why(), {"Unknown file: extra.py"});
  write_digests(variant);
  write_variant(folder, "torch-universal", 2, "x = 1");
  expect_has(why(), {"version 2", "version 1"});
  fs::remove_all(folder.path() / "ab/build/torch-universal");
  fs::rename(variant, folder.path() / "ab/build/release");
  expect_has(why(), {"a variant's name", "'release'"});
  fs::rename(folder.path() / "ab/build/release", variant);
  folder.write(cat("ab/build/", kCpuFolder, "/metadata.json"), metadata_text(1));
  expect_has(why(), {"digests", "hotswap kernel hash"});
}

}  // namespace
}  // namespace hotswap
