#include "hotswap/kernelize/package/package.h"

#include <ATen/ops/ones.h>

#include <atomic>
#include <set>
#include <thread>

#include "hotswap/base/file.h"
#include "hotswap/base/test_data.h"
#include "hotswap/kernelize/testing.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;
using test_support::expect_has;
using test_support::load;
using test_support::Marks;
using test_support::message_of;
using test_support::PackageCopy;
using test_support::ScopedEnv;
using test_support::TempFolder;
using Ordered = nlohmann::ordered_json;

TEST(Package, IsLoadedOncePerProcess) {
  PackageCopy copy("norm");
  const Manifest m = read_manifest(copy.variant());
  const Package& first = load_package(m);
  EXPECT_EQ(&first, &load_package(m));
  EXPECT_EQ(first.calls("rms_norm"), 0);
  EXPECT_ANY_THROW(first.calls("no_such_op"));
  EXPECT_EQ(op_calls(m.id, "rms_norm"), 0);
  EXPECT_EQ(op_calls("not-loaded", "rms_norm"), 0);
  // The same build at another place is the same package; another build under the id is not.
  PackageCopy other("norm");
  fs::remove_all(other.variant());
  fs::copy(copy.variant(), other.variant(), fs::copy_options::recursive);
  EXPECT_EQ(&first, &load_package(read_manifest(other.variant())));
  copy.edit_metadata([](Ordered& json) { json["version"] = 99; });
  expect_has(load(copy), {"one build of the id " + m.id, "sha256:"});
}

TEST(Package, EveryDifferenceFromTheContractIsListed) {
  PackageCopy copy("norm");
  copy.edit_layers([](Ordered& json) {
    json["layers"]["RMSNorm"]["ops"] = {
        {"forward", "rms_norm_fwd"}, {"forward_train", "layer_norm_fwd"}, {"backward", "no_such_op"}};
    json["layers"]["LayerNorm"]["ops"]["forward"] = "rms_norm_bwd";
  });
  const std::string text = load(copy);
  expect_has(text, {"RMSNorm (rms_norm/1 forward): ", "rms_norm_fwd: 1 results expected, got 2",
                    "RMSNorm (rms_norm/1 backward): op " + copy.id() + "::no_such_op is not registered",
                    "argument 2 expected 'float eps', got 'Tensor? bias'", "LayerNorm (layer_norm/1 forward)",
                    "argument 0 expected 'Tensor x', got 'Tensor dy'"});
  EXPECT_EQ(load(copy), text);  // loaded or not, it stays refused
}

TEST(Package, ALibraryThatIsNone) {
  PackageCopy text("norm");
  text.write(text.library().filename(), "not a library");
  text.sign();
  expect_has(load(text), {"to load", text.id()});
  PackageCopy cut("norm");
  const std::string bytes = read_file(cut.library());
  cut.write(cut.library().filename(), bytes.substr(0, 100));
  cut.sign();
  expect_has(load(cut), {"to load"});
}

// What was hashed is what is loaded, whoever replaces the file meanwhile.
TEST(Package, ALibraryReplacedWhileItIsLoaded) {
  const Marks marks;
  const std::string other = read_file(test_support::test_library(HOTSWAP_TEST_MARKING_LIBRARY));
  PackageCopy once("norm");
  const std::string good = read_file(once.library());
  const Package& loaded = load_package(read_manifest(once.variant()), [&](const FilesInMemory& files) {
    EXPECT_EQ(files.at(once.library().filename()).size(), good.size());
    write_file(once.library(), other);
  });
  EXPECT_EQ(loaded.calls("rms_norm"), 0) << "the library that was there when it began";

  for (int round = 0; round < 6; ++round) {
    PackageCopy copy("norm");
    const std::string bytes = read_file(copy.library());
    std::atomic<bool> done = false;
    std::thread replacing([&] {
      for (bool turn = false; !done; turn = !turn) {
        const fs::path next = copy.root() / "next";
        replace_file(next, turn ? bytes : other);
        fs::rename(next, copy.library());
      }
    });
    const Manifest manifest = read_manifest(copy.variant());
    for (int tries = 0; tries < 20; ++tries) {
      if (message_of([&] { load_package(manifest); }) == "no error") break;
    }
    done = true;
    replacing.join();
  }
  EXPECT_TRUE(marks.none()) << "the other library ran";
}

TEST(Package, ALibraryWithOpsOfAnotherName) {
  PackageCopy copy("norm");
  PackageCopy other("norm");  // its library registers other.id(), metadata.json will promise copy.id()
  copy.write(copy.library().filename(), read_file(other.library()));
  copy.sign();
  expect_has(load(copy), {copy.id() + "::rms_norm is not registered", copy.id() + "::call_count is not registered"});
}

TEST(Package, VariantsAreFoundInEveryLayout) {
  PackageCopy copy("norm");
  EXPECT_EQ(*find_variant(copy.root(), "cpu"), copy.variant());
  EXPECT_EQ(*find_variant(copy.root() / "build", "cpu"), copy.variant());
  EXPECT_EQ(*find_variant(copy.variant(), "cpu"), copy.variant());
  const auto none = find_variant(copy.root(), "xpu");
  EXPECT_FALSE(none);
  expect_has(none.why(), {"fits xpu", "backend (cpu) does not match selected backend (xpu)"});
  // What is no variant's name is passed over; <path>/ comes before <path>/build/.
  fs::create_directories(copy.root() / "build/torch211-cpu-riscv");
  write_file(copy.root() / "build/torch211-cpu-riscv/metadata.json", "{}");
  EXPECT_EQ(*find_variant(copy.root(), "cpu"), copy.variant());
  const fs::path above = copy.root() / copy.variant().filename();
  fs::copy(copy.variant(), above, fs::copy_options::recursive);
  EXPECT_EQ(*find_variant(copy.root(), "cpu"), above);
  TempFolder empty;
  expect_has(find_variant(empty.path(), "cpu").why(), {"none at all"});
  expect_has(message_of([] { (void)find_variant("/no/such/folder", "cpu"); }), {"/no/such/folder"});
}

// As older builders laid it out: all below the package's own name in the variant.
TEST(Package, ALibraryInItsOwnFolder) {
  PackageCopy copy("norm");
  const fs::path library = copy.variant() / "norm" / copy.library().filename();
  fs::create_directories(library.parent_path());
  fs::rename(copy.library(), library);
  expect_has(message_of([&] { read_manifest(copy.variant()); }), {"the digest of 'norm/" + copy.id()});
  copy.sign();
  EXPECT_EQ(read_manifest(copy.variant()).library(), library);
  EXPECT_EQ(load_package(read_manifest(copy.variant())).calls("rms_norm"), 0);
}

TEST(Package, BundledOnesAreListed) {
  std::set<std::string> names, sources;  // a build with GPU kernels lists a package once a variant
  for (const Manifest& m : bundled_packages()) names.insert(m.name);
  EXPECT_TRUE(names.contains("norm"));
  const fs::path kernels = test_support::source_folder() / "kernels";
  if (fs::is_directory(kernels)) {  // not where only the built tests are
    for (const auto& folder : fs::directory_iterator(kernels)) {
      if (fs::exists(folder.path() / "build.toml")) sources.insert(folder.path().filename());
    }
    EXPECT_EQ(names, sources);
  }
  const ScopedEnv elsewhere("HOTSWAP_PACKAGES", "/no/such/folder");
  expect_has(message_of([] { bundled_packages(); }), {"HOTSWAP_PACKAGES", "/no/such/folder"});
}

TEST(Package, OpsOfEveryBundledPackageFitTheirContracts) {
  for (const Manifest& m : bundled_packages()) {
    const Package& package = load_package(m);
    for (const auto& [name, entry] : m.layers) {
      EXPECT_TRUE(package.layer(name).runs_on("cpu")) << m.name << ":" << name;
      EXPECT_FALSE(package.layer(name).runs_on("xpu")) << m.name << ":" << name;
    }
  }
}

}  // namespace
}  // namespace hotswap
