// Kernels by name, against Python's unmodified `kernels`: redirects, locks, variants, and one cache for both.
#include "hotswap/hub/get_kernel.h"
#include "hotswap/hub/lock_kernels.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/publish.h"
#include "hotswap/hub/test_python.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// Two variants that Python may take and one that it never does; old has moved to two, as a repository and as a version.
class KernelsOfPython : public test_support::PythonPeer {
 protected:
  void SetUp() override {
    PythonPeer::SetUp();
    if (IsSkipped()) return;
    if (!has_kernels()) GTEST_SKIP() << python << " with the package 'kernels' is not there";
    for (const char* version : {"v1", "v2"}) {
      for (const char* variant : {"torch-universal", "torch-neuron", "torch210-cxx11-rocm71-x86_64-linux"}) {
        const std::string place = cat("kernels/acme/two/", version, "/build/", variant, "/");
        served.write(place + "__init__.py", cat("def answer():\n    return '", version, "'\n"));
        served.write(place + "sub/large.bin", std::string(2 << 20, version[1]) + variant);
        served.write(
            place + "metadata.json",
            cat(R"({"name":"two","id":"_two_)", version, R"(","version":)", version + 1,
                R"(,"license":"apache-2.0","python-depends":[],"kernel-depends":[],"backend":{"type":"cpu"}})"));
        write_digests(served.path() / place);
      }
    }
    const std::string moved = "kind = \"redirect\"\ndestination = \"acme/two\"\n";
    served.write("kernels/acme/old/main/kernel-status.toml", moved);
    served.write("kernels/acme/old/v1/kernel-status.toml", moved + "revision = \"v2\"\n");
    served.write("trusted_publishers.txt", "acme\n");
  }
  HubKernel get(const KernelRequest& request, bool offline = false) const {
    Hub hub(options(offline));
    KernelRequest asked = request;
    asked.system.torch = {2, 11};  // of a CPU, with Python
    return get_kernel(hub, asked);
  }
  std::string commit(const std::string& revision) const {
    return Hub(options()).client().commit({RepoType::kKernel, "acme/two"}, revision);
  }
  fs::path project(const std::string& dependencies) const {
    return scratch.write("project/pyproject.toml", "[tool.kernels.dependencies]\n" + dependencies).parent_path();
  }
  void forget_cache() const { fs::remove_all(cache()); }
};

TEST_F(KernelsOfPython, TheirCacheIsOurs) {
  const nlohmann::json none = nlohmann::json::object();
  const std::string folder = project("\"acme/old\" = 2\n").string();
  const auto theirs = ask({{"kernel", {"acme/old"}, {{"version", 1}}},
                           {"kernel", {"acme/two"}, {{"revision", "v1"}}},
                           {"cli", {"lock", folder}, none},
                           {"cli", {"download", folder}, none},
                           {"cli", {"versions", "acme/two"}, none},
                           {"system", nlohmann::json::array(), none},
                           {"has", {"acme/two"}, {{"version", 2}}},
                           {"has", {"acme/old"}, {{"version", 1}}}});
  EXPECT_EQ(theirs[0]["answer"], "v2") << theirs[0];
  EXPECT_EQ(theirs[1]["answer"], "v1") << theirs[1];
  EXPECT_EQ(theirs[2]["code"], 0) << theirs[2];
  EXPECT_EQ(theirs[3]["code"], 0) << theirs[3];
  EXPECT_EQ(theirs[6], true);

  // The same lock, byte for byte, and the same folder behind the same names.
  Hub hub(options());
  const Lockfile ours = lock_dependencies(hub, {{.repo = "acme/old", .version = 2}}, Lockfile::Form::kVariants);
  EXPECT_EQ(ours.text(), read_file(fs::path(folder) / "kernels.lock"));
  const HubKernel redirected = get({.ref = "acme/old@v1"});
  EXPECT_EQ((redirected.folder / "__init__.py").lexically_relative(cache()), theirs[0]["place"].get<std::string>());
  EXPECT_EQ(redirected.location.led_from, "acme/old");
  const int64_t sent = server->bytes_sent();
  const Lockfile lock = Lockfile::read(fs::path(folder) / "kernels.lock");
  const HubKernel locked = get({.ref = {"acme/two", {.locked = true}}, .lock = &lock});
  EXPECT_EQ(locked.folder, redirected.folder);
  EXPECT_EQ(get({.ref = "acme/two@v1"}, /*offline=*/true).variant, "torch-universal") << "their refs/v1";
  EXPECT_EQ(get({.ref = KernelRef("acme/two@" + commit("v2"))}, true).folder, redirected.folder);
  EXPECT_EQ(server->bytes_sent(), sent) << "nothing was downloaded twice";

  // The same variants for the same reasons, line by line.
  const auto version = MajorMinor::parse(theirs[5]["torch"].get<std::string>());
  ASSERT_TRUE(version.has_value()) << theirs[5];
  const System system{
      .torch = version, .cxx11_abi = true, .backend = *Backend::parse(theirs[5]["backend"].get<std::string>())};
  std::string text;
  for (const char* name : {"v1", "v2"}) {
    const auto names = variant_names(hub.tree({RepoType::kKernel, "acme/two"}, commit(name)));
    text += cat("Version ", name + 1, ":\n\n", choose_variant(names, system).trace_lines(), "\n");
  }
  EXPECT_EQ(theirs[4]["text"], text);
}

TEST_F(KernelsOfPython, OurCacheIsTheirs) {
  get({.ref = "acme/two@v1"});
  get({.ref = "acme/old@v1"});
  Hub hub(options());
  const fs::path lock = scratch.path() / "kernels.lock";
  lock_dependencies(hub, {{.repo = "acme/two", .version = 1}}, Lockfile::Form::kVariants).write(lock);
  const int64_t sent = server->bytes_sent();
  const nlohmann::json by_version = {{"version", 1}};
  const auto offline = ask({{"kernel", {"acme/two"}, by_version},
                            {"kernel", {"acme/two"}, {{"revision", commit("v2")}}},
                            {"lock", {"acme/two", lock.string()}, nlohmann::json::object()}},
                           /*offline=*/true);
  EXPECT_EQ(offline[0]["answer"], "v1") << "one variant of three is here, and refs/v1; " << offline[0];
  EXPECT_EQ(offline[1]["answer"], "v2") << "found by the redirect; " << offline[1];
  EXPECT_EQ(offline[2], "v1") << "by our lock";
  const auto online = ask({{"kernel", {"acme/two"}, by_version},
                           {"cli", {"download", lock.parent_path().string()}, nlohmann::json::object()}});
  EXPECT_EQ(online[0]["answer"], "v1") << online[0];
  EXPECT_EQ(online[1]["code"], 0) << online[1];
  EXPECT_EQ(server->bytes_sent(), sent) << "they had nothing to download";
  forget_cache();
  EXPECT_EQ(ask({{"cli", {"download", lock.parent_path().string()}, nlohmann::json::object()}})[0]["code"], 0)
      << "our hashes are right for what they fetch";
}

// A package without CUDA kernels, published: a torch built for CUDA (the test says that this one is) takes it, too.
TEST_F(KernelsOfPython, WhatIsPublishedLoadsInATorchOfCuda) {
  const std::string variant = "torch-stable-abi210-cpu-x86_64-linux";
  scratch.write("one/build/" + variant + "/__init__.py", "def answer():\n    return 'one'\n");
  scratch.write("one/build/" + variant + "/metadata.json",
                R"({"name":"one","id":"_one_cpu","version":1,"license":"mit","python-depends":[],)"
                R"("kernel-depends":[],"backend":{"type":"cpu"}})");
  write_digests(scratch.path() / "one/build" / variant);
  publish_package(scratch.path() / "one", served.path(), "acme/one", "");
  nlohmann::json jobs;
  const std::vector<std::string> versions = {"", "12.6", "13.0"};
  for (const std::string& cuda : versions) {
    jobs.push_back({"torch_of_cuda", {cuda}, nlohmann::json::object()});
    jobs.push_back({"kernel", {"acme/one"}, {{"version", 1}}});
  }
  const auto answers = ask(jobs);
  for (size_t i = 0; i < versions.size(); ++i) {
    const nlohmann::json& got = answers[2 * i + 1];
    ASSERT_TRUE(got.is_object()) << got;
    EXPECT_EQ(got["answer"], "one");
    EXPECT_EQ(fs::path(got["place"].get<std::string>()).parent_path().filename(), i == 0 ? variant : "torch-cuda");
  }
}

TEST_F(KernelsOfPython, BothRefuseWhatNobodyVouchesFor) {
  served.write("trusted_publishers.txt", "someone-else\n");
  const auto theirs = ask({{"kernel", {"acme/two"}, {{"version", 1}}},
                           {"kernel", {"acme/two"}, {{"version", 1}, {"trust_remote_code", true}}}});
  EXPECT_NE(theirs[0].dump().find("not from a trusted publisher"), std::string::npos) << theirs[0];
  EXPECT_EQ(theirs[1]["answer"], "v1") << theirs[1];
  EXPECT_NE(test_support::message_of([&] { get({.ref = "acme/two@v1"}); }).find("not from a trusted publisher"),
            std::string::npos);
  EXPECT_EQ(get({.ref = {"acme/two", {.version = 1, .trust = true}}}).variant, "torch-universal");
}

}  // namespace
}  // namespace hotswap
