#include "hotswap/hub/package/build_toml.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/hub/names/kernel_ref.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/variant_name.h"

namespace hotswap {
namespace {

using Texts = std::vector<std::string>;

void want(bool ok, const std::string& wanted, const Json& at, const std::string& got) {
  if (ok) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(wanted, " at ", at.where()),
               .got = "'" + shown(got) + "'",
               .next = cat("set ", at.where(), " accordingly")});
}

Texts texts(const Json& json, const char* key) { return json.get<Texts>(key, {}); }

std::optional<BuildVersion> version_at(const Json& json, const char* key) {
  const auto value = json.find(key);
  return value ? std::optional(parse_build_version(*value)) : std::nullopt;
}

// Sources and folders of includes are inside the package: what is outside does not travel with it.
void check_paths(const Json& json, const char* key, const Texts& paths) {
  for (const std::string& path : paths) {
    want(is_inside(path) || path == ".", "a path inside the package", json.child(key), path);
  }
}

std::string read_url(const Json& json, const char* key) {
  auto url = json.get<std::string>(key, "");
  want(url.empty() || is_git_url(url), "a git URL (https://..., ssh://..., user@host:path)", json, url);
  return url;
}

KernelDepend read_depend(const Json& json) {
  json.only({"repo-id", "version", "revision"});
  KernelDepend depend{.repo = json.at<std::string>("repo-id"), .version = std::nullopt, .revision = {}};
  want(is_repo_id(depend.repo), "a repository's name", json.child("repo-id"), depend.repo);
  want(json.has("version") != json.has("revision"), "exactly one of version and revision", json, json.raw().dump());
  if (json.has("version")) depend.version = json.at<int64_t>("version");
  depend.revision = json.get<std::string>("revision", "");
  want(!depend.version || *depend.version >= 0, "a version >= 0", json, json.raw().dump());
  return depend;
}

void read_depends(BuildToml& build, const std::string& backend, const Json& json) {
  if (json.has("python-depends")) build.python_depends[backend] = texts(json, "python-depends");
  if (const auto depends = json.find("kernel-depends")) {
    for (const Json& depend : depends->elements()) build.kernel_depends[backend].push_back(read_depend(depend));
  }
}

void read_general(BuildToml& b, const Json& json) {
  if (b.edition == 5) {
    json.only({"name", "version", "edition", "license", "backends", "upstream", "source", "python-depends",
               "kernel-depends", "hub", "cuda", "neuron", "tpu", "xpu"});
  } else if (b.edition == 4) {
    json.only({"name", "version", "license", "backends", "upstream", "source", "python-depends", "hub", "cuda",
               "neuron", "xpu"});
  } else {
    json.only({"name", "version", "license", "backends", "upstream", "python-depends", "hub", "cuda", "neuron", "xpu"});
  }
  b.name = json.at<std::string>("name");
  want(is_kernel_name(b.name), "a package name as [a-z][-a-z0-9]*[a-z0-9]", json.child("name"), b.name);
  b.version = b.edition == 3 ? json.get<int64_t>("version", 1) : json.at<int64_t>("version");
  want(b.version >= 0, "a version >= 0", json, std::to_string(b.version));
  b.license = json.at<std::string>("license");
  b.upstream = read_url(json, "upstream");
  b.source = read_url(json, "source");
  b.backends = json.at<Texts>("backends");
  for (const std::string& backend : b.backends) {
    const bool known = Backend::kind_named(backend).has_value() && (b.edition == 5 || backend != "tpu");
    want(known, "backends out of cann, cpu, cuda, metal, neuron, rocm, tpu (edition 5), xpu", json.child("backends"),
         backend);
    want(std::count(b.backends.begin(), b.backends.end(), backend) == 1, "each backend once", json.child("backends"),
         backend);
  }
  read_depends(b, "", json);
  if (const auto hub = json.find("hub")) {
    hub->only({"repo-id", "branch"});
    b.hub_repo = hub->get<std::string>("repo-id", "");
    want(b.hub_repo.empty() || is_repo_id(b.hub_repo), "a repository's name", *hub, b.hub_repo);
    b.hub_branch = hub->get<std::string>("branch", "");
    want(b.hub_branch.empty() || is_ref_name(b.hub_branch), "a branch's name", *hub, b.hub_branch);
  }
  for (const char* backend : {"cuda", "neuron", "tpu", "xpu"}) {
    const auto table = json.find(backend);
    if (!table) continue;
    const bool cuda = std::string_view(backend) == "cuda";
    if (b.edition < 5 || std::string_view(backend) == "tpu") {
      cuda ? table->only({"minver", "maxver", "python-depends"}) : table->only({"python-depends"});
    } else {
      cuda ? table->only({"minver", "maxver", "python-depends", "kernel-depends"})
           : table->only({"python-depends", "kernel-depends"});
    }
    read_depends(b, backend, *table);
    if (!cuda) continue;
    b.cuda_minver = version_at(*table, "minver");
    b.cuda_maxver = version_at(*table, "maxver");
  }
}

void read_sources(BuildFramework& f, const Json& json) {
  f.src = texts(json, "src");
  f.include = texts(json, "include");
  f.cxx_flags = texts(json, "cxx-flags");
  check_paths(json, "src", f.src);
  check_paths(json, "include", f.include);
}

void read_stable_abi(BuildFramework& f, const Json& json, int edition) {
  if (json.is_object() && edition == 5) {
    for (const auto& [backend, version] : json.items()) {
      want(Backend::kind_named(backend).has_value(), "a backend", version, backend);
      f.stable_abi[backend] = parse_build_version(version);
    }
  } else {
    f.stable_abi[""] = parse_build_version(json);
  }
}

BuildFramework read_framework(const Json& root, int edition) {
  BuildFramework f;
  const auto torch = root.find("torch"), noarch = root.find("torch-noarch"), tvm = root.find("tvm-ffi");
  const int present = torch.has_value() + noarch.has_value() + tvm.has_value();
  if (present == 0 && edition == 3) {
    f.kind = BuildFramework::Kind::kTorchNoarch;
    return f;
  }
  if (present != 1) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("exactly one of [torch], [torch-noarch] and [tvm-ffi] in ", root.where()),
                 .got = cat(present),
                 .next = "keep the table of the kind of package that it is: [torch] for compiled ops"});
  }
  const Json& table = torch ? *torch : noarch ? *noarch : *tvm;
  if (table.has("pyext")) f.pyext = texts(table, "pyext");
  if (noarch) {
    f.kind = BuildFramework::Kind::kTorchNoarch;
    // The builder's parser has underscores here; its documents show dashes. Either is meant.
    table.only({"pyext", "cuda_capabilities", "cuda-capabilities", "rocm_archs", "rocm-archs"});
    for (const char* key : {"cuda_capabilities", "cuda-capabilities"}) {
      if (table.has(key)) f.cuda_capabilities = texts(table, key);
    }
    for (const char* key : {"rocm_archs", "rocm-archs"}) {
      if (table.has(key)) f.rocm_archs = texts(table, key);
    }
    return f;
  }
  if (tvm) {
    f.kind = BuildFramework::Kind::kTvmFfi;
    edition == 3 ? table.only({"src", "include", "pyext"}) : table.only({"src", "include", "pyext", "cxx-flags"});
    table.child("src");
  } else if (edition == 3) {
    table.only({"src", "include", "pyext", "minver", "maxver"});
  } else {
    table.only({"src", "include", "pyext", "minver", "maxver", "cxx-flags", "stable-abi"});
    if (const auto abi = table.find("stable-abi")) read_stable_abi(f, *abi, edition);
  }
  read_sources(f, table);
  f.minver = version_at(table, "minver");
  f.maxver = version_at(table, "maxver");
  return f;
}

BuildKernel read_kernel(const Json& json) {
  BuildKernel k;
  k.backend = json.at<std::string>("backend");
  if (k.backend == "cuda") {
    json.only({"backend", "depends", "src", "include", "cxx-flags", "cuda-capabilities", "cuda-flags", "cuda-minver"});
  } else if (k.backend == "rocm") {
    json.only({"backend", "depends", "src", "include", "cxx-flags", "rocm-archs", "hip-flags"});
  } else if (k.backend == "xpu") {
    json.only({"backend", "depends", "src", "include", "cxx-flags", "sycl-flags"});
  } else {
    want(k.backend == "cpu" || k.backend == "metal", "a backend out of cpu, cuda, metal, rocm, xpu",
         json.child("backend"), k.backend);
    json.only({"backend", "depends", "src", "include", "cxx-flags"});
  }
  k.depends = json.at<Texts>("depends");
  for (const std::string& name : k.depends) {
    static constexpr const char* kKnown[] = {"torch",       "cutlass_2_10", "cutlass_3_5", "cutlass_3_6",
                                             "cutlass_3_8", "cutlass_3_9",  "cutlass_4_0", "cutlass_4_4",
                                             "cutlass_4_5", "sycl_tla",     "metal-cpp"};
    const bool known = std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown);
    want(known, cat("depends out of ", join(kKnown)), json.child("depends"), name);
  }
  k.src = json.at<Texts>("src");
  k.include = texts(json, "include");
  check_paths(json, "src", k.src);
  check_paths(json, "include", k.include);
  k.cxx_flags = texts(json, "cxx-flags");
  k.archs = k.backend == "rocm" ? texts(json, "rocm-archs") : texts(json, "cuda-capabilities");
  k.device_flags = texts(json, k.backend == "rocm" ? "hip-flags" : k.backend == "xpu" ? "sycl-flags" : "cuda-flags");
  k.cuda_minver = version_at(json, "cuda-minver");
  return k;
}

int edition_of(const Json& root, const Json& general) {
  if (general.has("edition")) {
    const auto edition = general.at<int64_t>("edition");
    want(edition == 5, "edition 5 (editions 4 and 3 have no such key)", general.child("edition"),
         std::to_string(edition));
    return 5;
  }
  const bool framework = root.has("torch") || root.has("torch-noarch") || root.has("tvm-ffi");
  return framework && general.has("version") && general.has("license") ? 4 : 3;
}

}  // namespace

BuildVersion parse_build_version(const Json& value) {
  const auto text = value.as<std::string>();
  BuildVersion version;
  for (const std::string& part : split(trim(text), '.')) {
    want(all_digits(part) && part.size() <= 9, "a version of dotted numbers", value, text);
    version.push_back(std::stoll(part));
  }
  while (!version.empty() && version.back() == 0) version.pop_back();
  return version;
}

BuildToml parse_build_toml(const Json& json) {
  json.only({"general", "torch", "torch-noarch", "tvm-ffi", "kernel"});
  const Json general = json.child("general");
  BuildToml build;
  build.edition = edition_of(json, general);
  if (build.edition == 3 && json.has("torch-noarch")) json.child("torch-noarch").only({});
  read_general(build, general);
  build.framework = read_framework(json, build.edition);
  if (const auto kernels = json.find("kernel")) {
    for (const auto& [name, kernel] : kernels->items()) build.kernels[name] = read_kernel(kernel);
  }
  return build;
}

BuildToml read_build_toml(const std::filesystem::path& file) { return parse_build_toml(Json::read_toml(file)); }

}  // namespace hotswap
