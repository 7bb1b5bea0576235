#include "hotswap/hub/package/build_toml.h"

#include "hotswap/base/test_support.h"

namespace hotswap {
namespace {

using test_support::expect_has;
using test_support::message_of;
using test_support::TempFolder;

BuildToml parsed_toml(const std::string& toml) {
  static TempFolder folder;
  return read_build_toml(folder.write("build.toml", toml));
}

constexpr const char* kFive = R"(
[general]
name = "rms-norm"
version = 3
edition = 5
license = "apache-2.0"
backends = ["cpu", "cuda", "rocm", "xpu", "tpu"]
upstream = "https://github.com/org/repo"
source = "git@github.com:org/repo.git"
python-depends = ["einops"]
kernel-depends = [{repo-id = "org/a", version = 2}, {repo-id = "org/b", revision = "main"}]

[general.hub]
repo-id = "org/rms-norm"
branch = "next"

[general.cuda]
minver = "12.6"
maxver = "13.0"
python-depends = ["nvidia-cutlass-dsl"]
kernel-depends = [{repo-id = "org/c", version = 0}]

[general.tpu]
python-depends = []

[torch]
src = ["torch-ext/torch_binding.cpp"]
include = ["."]
pyext = ["py", "json"]
minver = "2.10"
stable-abi = {cuda = "2.11", cpu = "2.10.0"}
cxx-flags = ["-O3"]

[kernel.norm_cpu]
backend = "cpu"
depends = ["torch"]
src = ["cpu/norm.cpp"]

[kernel.norm_cuda]
backend = "cuda"
depends = ["torch", "cutlass_4_4"]
src = ["cuda/norm.cu"]
include = ["cuda"]
cuda-capabilities = ["9.0a", "10.0f", "8.0+PTX"]
cuda-flags = ["--use_fast_math"]
cuda-minver = "12.8"

[kernel.norm_rocm]
backend = "rocm"
depends = ["torch"]
src = ["cuda/norm.cu"]
rocm-archs = ["gfx942"]
hip-flags = ["-x"]

[kernel.norm_xpu]
backend = "xpu"
depends = ["torch", "sycl_tla"]
src = ["xpu/norm.cpp"]
sycl-flags = ["-y"]
)";

constexpr const char* kFour = R"(
[general]
name = "relu"
version = 1
license = "mit"
backends = ["cuda"]
[torch]
src = ["a.cpp"]
stable-abi = "2.11"
[kernel.relu]
backend = "cuda"
depends = ["torch"]
src = ["relu.cu"]
)";

constexpr const char* kThree = R"(
[general]
name = "relu"
license = "mit"
backends = ["cuda"]
)";

TEST(BuildToml, EditionFive) {
  const BuildToml b = parsed_toml(kFive);
  EXPECT_EQ(b.edition, 5);
  EXPECT_EQ(b.name, "rms-norm");
  EXPECT_EQ(b.version, 3);
  EXPECT_EQ(b.hub_repo + " " + b.hub_branch, "org/rms-norm next");
  EXPECT_EQ(b.cuda_minver, (BuildVersion{12, 6}));
  EXPECT_EQ(b.cuda_maxver, (BuildVersion{13}));
  EXPECT_EQ(b.python_depends.at("cuda"), std::vector<std::string>{"nvidia-cutlass-dsl"});
  EXPECT_EQ(b.kernel_depends.at("").at(1).revision, "main");
  EXPECT_EQ(b.kernel_depends.at("cuda").at(0).version, 0);
  EXPECT_EQ(b.framework.kind, BuildFramework::Kind::kTorch);
  EXPECT_EQ(b.framework.stable_abi.at("cpu"), (BuildVersion{2, 10}));
  EXPECT_EQ(b.framework.pyext, (std::vector<std::string>{"py", "json"}));
  EXPECT_EQ(b.kernels.at("norm_cuda").archs, (std::vector<std::string>{"9.0a", "10.0f", "8.0+PTX"}));
  EXPECT_EQ(b.kernels.at("norm_cuda").cuda_minver, (BuildVersion{12, 8}));
  EXPECT_EQ(b.kernels.at("norm_rocm").device_flags, std::vector<std::string>{"-x"});
  EXPECT_EQ(b.kernels.at("norm_xpu").device_flags, std::vector<std::string>{"-y"});
}

TEST(BuildToml, OlderEditions) {
  const BuildToml four = parsed_toml(kFour);
  EXPECT_EQ(four.edition, 4);
  EXPECT_EQ(four.framework.stable_abi.at(""), (BuildVersion{2, 11}));
  const BuildToml three = parsed_toml(kThree);
  EXPECT_EQ(three.edition, 3);
  EXPECT_EQ(three.version, 1);
  EXPECT_EQ(three.framework.kind, BuildFramework::Kind::kTorchNoarch);
}

TEST(BuildToml, OtherFrameworks) {
  const std::string general =
      "[general]\nname = \"ab\"\nversion = 1\nedition = 5\nlicense = \"mit\"\nbackends = [\"cuda\"]\n";
  for (const char* keys : {"cuda_capabilities = [\"9.0\"]\nrocm_archs = [\"gfx942\"]",
                           "cuda-capabilities = [\"9.0\"]\nrocm-archs = [\"gfx942\"]"}) {
    const BuildToml b = parsed_toml(cat(general, "[torch-noarch]\npyext = [\"py\"]\n", keys, "\n"));
    EXPECT_EQ(b.framework.cuda_capabilities, std::vector<std::string>{"9.0"}) << keys;
    EXPECT_EQ(b.framework.rocm_archs, std::vector<std::string>{"gfx942"}) << keys;
  }
  EXPECT_EQ(parsed_toml(general + "[tvm-ffi]\nsrc = [\"a.cpp\"]\ncxx-flags = []\n").framework.kind,
            BuildFramework::Kind::kTvmFfi);
}

TEST(BuildToml, RefusesTheRest) {
  struct Row {
    const char *base, *from, *to, *says;
  };
  const Row table[] = {
      {kFive, "edition = 5", "edition = 6", "edition 5"},
      {kFive, "edition = 5", "edition = \"5\"", "an integer"},
      {kFive, "version = 3", "version = -3", "version >= 0"},
      {kFive, "version = 3", "", "version"},
      {kFive, "license = \"apache-2.0\"", "", "license"},
      {kFive, "\"rms-norm\"", "\"rms_norm\"", "package name"},
      {kFive, "\"cpu\", \"cuda\"", "\"cpu\", \"quantum\"", "quantum"},
      {kFive, "\"cpu\", \"cuda\"", "\"cpu\", \"cpu\"", "each backend once"},
      {kFive, "https://github.com", "ftp://github.com", "git URL"},
      {kFive, "version = 2}", "version = 2, revision = \"x\"}", "exactly one"},
      {kFive, ", version = 2}", "}", "exactly one"},
      {kFive, "repo-id = \"org/a\"", "repo-id = \"a\"", "repository's name"},
      {kFive, "[general.hub]", "[general.hub]\nrepo_id = 1", "'repo_id'"},
      {kFive, "branch = \"next\"", "branch = \"a..b\"", "branch's name"},
      {kFive, "[general.cuda]", "[general.cuda]\nmin = 1", "'min'"},
      {kFive, "\"12.6\"", "\"12.x\"", "dotted numbers"},
      {kFive, "\"12.6\"", "12.6", "a string"},
      {kFive, "[general.tpu]", "[general.tpu]\nkernel-depends = []", "kernel-depends"},
      {kFive, "[torch]", "[tvm-ffi]\nsrc = []\n[torch]", "exactly one of [torch]"},
      {kFive, "[torch]", "[torch]\ncxx_flags = []", "'cxx_flags'"},
      {kFive, "{cuda = \"2.11\"", "{quantum = \"2.11\"", "a backend"},
      {kFive, "torch-ext/torch_binding.cpp", "../x.cpp", "inside the package"},
      {kFive, "torch-ext/torch_binding.cpp", "/etc/passwd", "inside the package"},
      {kFive, "backend = \"xpu\"", "backend = \"tpu\"", "cpu, cuda, metal, rocm, xpu"},
      {kFive, "\"cutlass_4_4\"", "\"cutlass_9_9\"", "cutlass_9_9"},
      {kFive, "sycl-flags", "hip-flags", "hip-flags"},
      {kFive, "cuda-minver", "cuda_minver", "cuda_minver"},
      {kFive, "[kernel.norm_cpu]", "[kernel.norm_cpu]\ncuda-capabilities = []", "cuda-capabilities"},
      {kFive, "[kernel.norm_cpu]", "[kernels.x]\n[kernel.norm_cpu]", "'kernels'"},
      {kFive, "depends = [\"torch\"]", "", "depends"},
      {kFour, "[\"cuda\"]", "[\"tpu\"]", "edition 5"},
      {kFour, "[torch]", "[general.tpu]\n[torch]", "'tpu'"},
      {kFour, "[torch]", "[general.cuda]\nkernel-depends = []\n[torch]", "kernel-depends"},
      {kFour, "stable-abi = \"2.11\"", "stable-abi = {cuda = \"2.11\"}", "a string"},
      {kThree, "license = \"mit\"", "", "license"},
      {kThree, "license = \"mit\"", "license = \"mit\"\nsource = \"https://x/y\"", "'source'"},
  };
  for (const Row& row : table) {
    std::string toml = row.base;
    const size_t at = toml.find(row.from);
    ASSERT_NE(at, toml.npos) << row.from;
    toml.replace(at, std::string(row.from).size(), row.to);
    expect_has(message_of([&] { parsed_toml(toml); }), {row.says});
  }
  EXPECT_NE(message_of([] { parsed_toml("[general"); }), "no error");
  EXPECT_NE(message_of([] { parsed_toml(""); }), "no error");
}

TEST(BuildToml, WhatWillNotBuild) {
  TempFolder folder;
  folder.write("cpu/norm.cpp", "");
  folder.write("torch-ext/torch_binding.cpp", "");
  folder.write("xpu/norm.cpp", "");
  BuildToml b = parsed_toml(kFive);
  EXPECT_EQ(check_build(b, folder.path()), (std::vector<std::string>{"kernel.norm_cuda: no file cuda/norm.cu",
                                                                     "kernel.norm_rocm: no file cuda/norm.cu"}));
  folder.write("cuda/norm.cu", "");
  EXPECT_TRUE(check_build(b, folder.path()).empty());

  b.kernels.at("norm_cuda").archs = {"99999.0"};
  b.kernels.at("norm_rocm").archs = {"gfx99999"};
  b.backends = {"cpu", "cuda", "rocm"};
  b.python_depends[""] = {"requests", "einops"};
  std::swap(b.cuda_minver, b.cuda_maxver);
  const std::string all = join(check_build(b, folder.path()), "\n");
  expect_has(all, {"build for '99999.0'", "build for 'gfx99999'", "kernel.norm_xpu: its backend xpu is not in",
                   "may not depend on 'requests'", "minver is above maxver"});
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 4);
}

}  // namespace
}  // namespace hotswap
