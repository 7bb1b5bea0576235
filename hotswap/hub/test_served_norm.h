// For tests: a served Hub with a package of two variants, and what was asked of it.
#pragma once

#include <algorithm>
#include <mutex>

#include "hotswap/base/test_support.h"
#include "hotswap/hub/get_kernel.h"
#include "hotswap/hub/package/digest.h"
#include "hotswap/hub/serve/server.h"

namespace hotswap::test_support {

inline const std::string kCpu = "torch-stable-abi210-cpu-x86_64-linux",
                         kCuda = "torch-stable-abi210-cu130-x86_64-linux";

class ServedNorm : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* version : {"v1", "v2", "v10"}) add("acme/norm", version);
    served.write("trusted_publishers.txt", "acme\n");
    server = std::make_unique<HubServer>(HubServerOptions{
        .folder = served.path(), .large_from = 4096, .rescan_s = 0, .on_request = [this](const std::string& line) {
          const std::lock_guard lock(mutex);
          lines.push_back(line);
        }});
    server->start();
  }
  // A package of two variants with good digests; the library of each is large enough for LFS.
  std::filesystem::path add(const std::string& repo, const std::string& revision,
                            const std::string& more_metadata = "") {
    const std::string place = cat("kernels/", repo, "/", revision, "/build/");
    for (const std::string& variant : {kCpu, kCuda}) {
      const std::string backend = variant == kCpu ? "cpu" : "cuda";
      served.write(place + variant + "/metadata.json",
                   cat(R"({"name":"norm","id":"_norm_)", backend,
                       R"(","version":1,"license":"mit","python-depends":[],)", R"("backend":{"type":")", backend, "\"",
                       variant == kCuda ? R"(,"archs":["9.0"])" : "", "}", more_metadata, "}"));
      served.write(cat(place, variant, "/_norm_", backend, ".abi3.so"), std::string(5000, 'x') + revision);
      served.write(place + variant + "/__init__.py", "");
      write_digests(served.path() / (place + variant));
    }
    return served.path() / place;
  }
  void redirect(const std::string& from, const std::string& revision, const std::string& to,
                const std::string& to_revision = "") {
    served.write(cat("kernels/", from, "/", revision, "/kernel-status.toml"),
                 cat("kind = \"redirect\"\ndestination = \"", to, "\"\n",
                     to_revision.empty() ? "" : cat("revision = \"", to_revision, "\"\n")));
  }
  HubOptions options(bool offline = false) const {
    HubOptions o{.endpoint = server->url(), .cache = cache.path(), .kernels_cache = cache.path(), .offline = offline};
    o.progress = false;
    return o;
  }
  HubKernel get(const KernelRequest& request, bool offline = false) const {
    Hub hub(options(offline));
    KernelRequest asked = request;
    if (!asked.system.torch) asked.system = cpu();
    return get_kernel(hub, asked);
  }
  std::string refused(const KernelRequest& request, bool offline = false) const {
    return message_of([&] { get(request, offline); });
  }
  static System cpu() { return {.torch = {{2, 11}}, .no_python = true}; }
  static System gpu(MajorMinor capability) {
    System system = cpu();
    system.backend = *Backend::parse("cu130");
    system.capability = capability;
    return system;
  }
  std::vector<std::string> asked() const {
    const std::lock_guard lock(mutex);
    return lines;
  }
  size_t asked_with(const std::string& part) const {
    const auto all = asked();
    return static_cast<size_t>(
        std::count_if(all.begin(), all.end(), [&](const auto& line) { return line.find(part) != line.npos; }));
  }
  std::string commit(const std::string& repo, const std::string& revision) const {
    Hub hub(options());
    return hub.client().commit({RepoType::kKernel, repo}, revision);
  }

  TempFolder served, cache;
  mutable std::mutex mutex;
  std::vector<std::string> lines;
  std::unique_ptr<HubServer> server;
};

}  // namespace hotswap::test_support
