#include "hotswap/kernelize/package/package.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>
#include <torch/csrc/jit/frontend/function_schema_parser.h>
#include <torch/version.h>

#include <algorithm>
#include <mutex>

#include "hotswap/base/env.h"
#include "hotswap/base/error.h"
#include "hotswap/base/own_binary_path.h"
#include "hotswap/kernelize/package/device.h"
#include "hotswap/kernelize/package/sealed_file.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

c10::DispatchKey key_of(const std::string& device_kind) {
  static const std::map<std::string, c10::DispatchKey> keys = {
      {"cpu", c10::DispatchKey::CPU},         {"cuda", c10::DispatchKey::CUDA},
      {"rocm", c10::DispatchKey::CUDA},       {"mps", c10::DispatchKey::MPS},
      {"xpu", c10::DispatchKey::XPU},         {"tpu", c10::DispatchKey::XLA},
      {"npu", c10::DispatchKey::PrivateUse1}, {"neuron", c10::DispatchKey::PrivateUse1}};
  return keys.at(device_kind);
}

std::string shown_argument(const c10::Argument& argument) {
  std::ostringstream text;
  text << argument;
  return text.str();
}

// Names and types of arguments, types of results: what a caller relies on.
void compare(const std::string& op, const std::string& signature, std::vector<std::string>& wrong) {
  const auto handle = c10::Dispatcher::singleton().findSchema({op, ""});
  if (!handle) {
    wrong.push_back("op " + op + " is not registered");
    return;
  }
  const c10::FunctionSchema wanted = torch::jit::parseSchema(op + signature);
  const c10::FunctionSchema& got = handle->schema();
  auto each = [&](const char* what, const auto& want, const auto& have, auto differ) {
    if (want.size() != have.size())
      wrong.push_back(cat(op, ": ", want.size(), " ", what, "s expected, got ", have.size()));
    for (size_t i = 0; i < std::min(want.size(), have.size()); ++i) {
      if (!differ(want[i], have[i])) continue;
      wrong.push_back(cat(op, ": ", what, " ", i, " expected '", shown_argument(want[i]), "', got '",
                          shown_argument(have[i]), "'"));
    }
  };
  auto types_differ = [](const c10::Argument& a, const c10::Argument& b) { return a.type()->str() != b.type()->str(); };
  each("argument", wanted.arguments(), got.arguments(), [&](const c10::Argument& a, const c10::Argument& b) {
    const bool a_writes = a.alias_info() && a.alias_info()->isWrite();
    const bool b_writes = b.alias_info() && b.alias_info()->isWrite();
    return types_differ(a, b) || a.name() != b.name() || a_writes != b_writes;
  });
  each("result", wanted.returns(), got.returns(), types_differ);
}

void check_schemas(const Manifest& m) {
  std::vector<std::string> wrong;
  compare(m.op_namespace() + "::call_count", "(str op) -> int", wrong);
  for (const auto& [name, layer] : m.layers) {
    const Contract& contract = *find_contract(layer.contract);
    for (const auto& [role, op] : layer.ops) {
      std::vector<std::string> differences;
      compare(m.op_namespace() + "::" + op, contract.roles.at(role).schema, differences);
      for (const auto& text : differences) wrong.push_back(cat(name, " (", contract.name, " ", role, "): ", text));
    }
  }
  if (wrong.empty()) return;
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("the ops of ", m.library().string(), " as their contracts have them"),
               .got = join(wrong, "; "),
               .next = "use a package and a hotswap that fit together"});
}

struct Loaded {
  std::string digest;
  std::unique_ptr<Package> package;  // null: its library is in the process, but was refused
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, Loaded> by_id;
};

Registry& registry() {
  static auto* all = new Registry;  // outlives every static destructor: its ops may be called until the very end
  return *all;
}

void open_library(const Manifest& m, SealedFile& library) {
  // A second definition of the namespace would end the process from inside dlopen.
  const std::string ops = m.id + "::";
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (!name.name.starts_with(ops)) continue;
    throw Error(
        {.kind = ErrorKind::kInvalidArgument,
         .wanted = cat("to load ", m.library().string()),
         .got = cat("its op ", name.name, " registered in this process already"),
         .next = "leave out the other load of it (torch.ops.load_library, LD_PRELOAD): hotswap loads packages itself"});
  }
  // Foreign packages name PyModule_Create2 for Python's sake. Bound when called, it is never missed here.
  const int when = m.adapter.empty() ? RTLD_NOW : RTLD_LAZY;
  if (dlopen(library.name().c_str(), when | RTLD_LOCAL) == nullptr) {
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("to load ", m.library().string()),
                 .got = dlerror(),
                 .next = "rebuild the package"});
  }
  library.keep_name();
}

std::map<std::string, std::string> qualified(const Package& package, std::map<std::string, std::string> ops) {
  for (auto& [role, op] : ops) op = cat(package.manifest().op_namespace(), "::", op);
  return ops;
}

std::vector<std::string> variants_in(const fs::path& folder) {
  std::vector<std::string> names;
  if (!fs::is_directory(folder)) return names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (fs::is_regular_file(entry.path() / "metadata.json")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

PackageLayer::PackageLayer(const Package& package, std::string name, const LayerEntry& entry)
    : LayerOps(cat(package.manifest().name, ":", name), *find_contract(entry.contract), qualified(package, entry.ops),
               entry.capabilities.backward),
      package_(package),
      name_(std::move(name)),
      entry_(entry) {}

bool PackageLayer::runs_on(const std::string& device_kind) const {
  return std::all_of(entry_.ops.begin(), entry_.ops.end(), [&](const auto& role_and_op) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow(op(role_and_op.first).c_str(), "")
        .hasComputedKernelForDispatchKey(key_of(device_kind));
  });
}

Package::Package(Manifest manifest) : manifest_(std::move(manifest)) {
  for (const auto& [name, entry] : manifest_.layers) layers_.try_emplace(name, *this, name, entry);
}

int64_t Package::calls(const std::string& op) const {
  const auto handle =
      c10::Dispatcher::singleton().findSchemaOrThrow((manifest_.op_namespace() + "::call_count").c_str(), "");
  return handle.typed<int64_t(std::string_view)>().call(op);
}

const Package& load_package(const Manifest& manifest, const std::function<void(const FilesInMemory& files)>& verify) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.by_id.find(manifest.id);
  if (found == all.by_id.end()) {
    SealedFile library(manifest.library());
    FilesInMemory files = manifest.files_in_memory();
    files[manifest.library_name()] = library.bytes();
    if (verify) verify(files);
    verify_digest(manifest, files);
    open_library(manifest, library);
    found = all.by_id.emplace(manifest.id, Loaded{manifest.digest, nullptr}).first;
  }
  Loaded& loaded = found->second;
  // Ops are found by the id: a second build under the same one would be run in place of the first, or the other way.
  if (loaded.digest != manifest.digest) {
    throw Error(
        {.kind = ErrorKind::kInvalidArgument,
         .wanted = cat("one build of the id ", manifest.id, " in a process"),
         .got = cat(loaded.digest, " is loaded, ", manifest.digest, " is requested in ", manifest.folder.string()),
         .next = "give a changed package a new id, as its build does"});
  }
  if (!loaded.package) {
    if (manifest.register_adapter != nullptr) manifest.register_adapter(manifest);
    check_schemas(manifest);
    loaded.package = std::make_unique<Package>(manifest);
  }
  return *loaded.package;
}

System this_system(const std::string& device_kind) {
  System system{.torch = {{TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR}},
                .cxx11_abi = _GLIBCXX_USE_CXX11_ABI != 0,
                .no_python = true};
#if defined(__aarch64__)
  system.cpu = "aarch64";
#endif
  const std::string name = device_kind == "mps" ? "metal" : device_kind == "npu" ? "cann" : device_kind;
  system.backend.kind = Backend::kind_named(name).value_or(BackendKind::kCpu);
  if (device_kind == "cuda" && at::globalContext().hasCUDART()) {
    const int version = static_cast<int>(at::globalContext().versionCUDART());  // 13000
    system.backend.version = MajorMinor{version / 1000, version % 1000 / 10};
    if (const auto capability = device_capability(at::kCUDA)) {
      system.capability = MajorMinor{static_cast<int>(*capability / 10), static_cast<int>(*capability % 10)};
    }
  }
  return system;
}

Result<fs::path> find_variant(const fs::path& root, const std::string& device_kind) {
  if (!fs::is_directory(root)) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "the folder of a kernel package",
                 .got = root.string() + ", which is none",
                 .next = "check the path"});
  }
  if (fs::is_regular_file(root / "metadata.json")) return root;
  std::string trace;
  for (const fs::path& folder : {root, root / "build"}) {
    const VariantChoice choice = choose_variant(variants_in(folder), this_system(device_kind));
    if (choice.chosen) return folder / *choice.chosen;
    if (!choice.trace.empty()) trace = cat(choice.trace_text(), "; nearest: ", choice.nearest_text());
  }
  return Reason{
      cat("no variant of ", root.string(), " fits ", device_kind, ": ", trace.empty() ? "it has none at all" : trace)};
}

Result<fs::path> bundled_folder() {
  if (const auto given = env(EnvVar::kPackages)) {
    if (fs::is_directory(*given)) return fs::path(*given);
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = "HOTSWAP_PACKAGES to be a folder",
                 .got = "'" + *given + "'",
                 .next = "correct or unset it"});
  }
  const auto here = own_binary_path();
  if (!here) return Reason{here.why() + "; set HOTSWAP_PACKAGES"};
  const fs::path up = here->parent_path().parent_path();
  for (const fs::path& place : {up / "packages", up / "share/hotswap/packages"}) {
    if (fs::is_directory(place)) return place;
  }
  return Reason{cat("no bundled packages in ", (up / "packages").string(), " or ",
                    (up / "share/hotswap/packages").string(), "; set HOTSWAP_PACKAGES")};
}

std::vector<Manifest> bundled_packages() {
  std::vector<Manifest> result;
  const auto folder = bundled_folder();
  if (!folder) return result;
  for (const auto& entry : fs::directory_iterator(*folder)) {
    if (entry.path().filename().string().starts_with(".")) continue;
    const fs::path build = entry.path() / "build";
    for (const auto& variant : variants_in(build)) {
      if (!variant.starts_with(".")) result.push_back(read_manifest(build / variant));
    }
  }
  std::sort(result.begin(), result.end(), [](const Manifest& a, const Manifest& b) {
    return std::tie(a.name, a.variant) < std::tie(b.name, b.variant);
  });
  return result;
}

int64_t op_calls(const std::string& package, const std::string& op) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  int64_t calls = 0;
  bool loaded_one = false, known = false;
  for (const auto& [id, loaded] : all.by_id) {
    if (!loaded.package || (id != package && loaded.package->manifest().name != package)) continue;
    loaded_one = true;
    // Two packages may have one name, a bundled one and another of the Hub, and not the same ops.
    const std::string name = loaded.package->manifest().op_namespace() + "::" + op;
    if (!c10::Dispatcher::singleton().findSchema({name, ""})) continue;
    known = true;
    calls += loaded.package->calls(op);
  }
  if (loaded_one && !known) {
    throw Error({.kind = ErrorKind::kNotFound,
                 .wanted = cat("an op of the package ", package),
                 .got = op,
                 .next = "`hotswap kernel info` lists them"});
  }
  return calls;
}

}  // namespace hotswap
