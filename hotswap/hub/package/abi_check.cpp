#include "hotswap/hub/package/abi_check.h"

#include <algorithm>
#include <set>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/hub/names/text.h"
#include "hotswap/hub/names/version.h"
#include "hotswap/hub/package/digest.h"

namespace hotswap {
namespace {

namespace fs = std::filesystem;

// manylinux_2_28
constexpr std::pair<const char*, const char*> kLimits[] = {
    {"GLIBC", "2.28"}, {"GLIBCXX", "3.4.24"}, {"CXXABI", "1.3.11"}, {"GCC", "8.0"}};
// torch/csrc/stable/c/shim.h by the version that brought them; aoti_torch_* are older.
constexpr const char* kTorch210[] = {"torch_c10_cuda_check_msg",
                                     "torch_c10_cuda_free_error_msg",
                                     "torch_call_dispatcher",
                                     "torch_cuda_stream_synchronize",
                                     "torch_delete_list",
                                     "torch_delete_string",
                                     "torch_get_const_data_ptr",
                                     "torch_get_cuda_stream_from_pool",
                                     "torch_get_current_cuda_blas_handle",
                                     "torch_get_mutable_data_ptr",
                                     "torch_get_num_threads",
                                     "torch_get_thread_idx",
                                     "torch_library_impl",
                                     "torch_list_get_item",
                                     "torch_list_push_back",
                                     "torch_list_set_item",
                                     "torch_list_size",
                                     "torch_new_list_reserve_size",
                                     "torch_new_string_handle",
                                     "torch_parallel_for",
                                     "torch_parse_device_string",
                                     "torch_set_current_cuda_stream",
                                     "torch_set_requires_grad",
                                     "torch_string_c_str",
                                     "torch_string_length"};
constexpr const char* kTorch211[] = {"torch_dtype_float4_e2m1fn_x2", "torch_dtype_float8_e8m0fnu", "torch_from_blob"};

bool among(std::string_view name, std::span<const char* const> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Mangled names of at::, c10::, torch:: and caffe2::, also behind the prefixes of constructors, vtables, const and so
// on.
bool is_torch_cpp(std::string_view name) {
  if (!name.starts_with("_Z")) return false;
  for (const char* space : {"2at", "3c10", "5torch", "6caffe2"}) {
    for (const char* prefix : {"_ZN", "_ZNK", "_ZTVN", "_ZTIN", "_ZTSN", "_ZTTN", "_ZGVN", "_ZNKR", "_ZNR"}) {
      if (name.starts_with(cat(prefix, space))) return true;
    }
  }
  return false;
}

std::optional<MajorMinor> level_of(const std::string& name) {
  if (name.starts_with("aoti_torch_")) return MajorMinor{2, 9};
  if (among(name, kTorch210)) return MajorMinor{2, 10};
  if (among(name, kTorch211)) return MajorMinor{2, 11};
  return std::nullopt;
}

// "GLIBC_2.34" is too new for manylinux_2_28.
bool too_new(const std::string& version, std::string& limit) {
  const size_t line = version.rfind('_');
  if (line == version.npos) return false;
  for (const auto& [family, most] : kLimits) {
    if (version.substr(0, line) != family) continue;
    limit = cat(family, "_", most);
    const auto number = Version::try_parse(version.substr(line + 1));
    return !number || *number > Version::parse(most);  // GLIBC_PRIVATE has no number
  }
  return false;
}

bool known_library(const std::string& name) {
  static constexpr const char* kKnown[] = {
      "libc.",    "libm.",        "libstdc++.",  "libgcc_s.",     "libpthread.",    "libdl.",        "librt.",
      "libgomp.", "ld-linux",     "libtorch.",   "libtorch_cpu.", "libtorch_cuda.", "libtorch_hip.", "libtorch_xpu.",
      "libc10.",  "libc10_cuda.", "libc10_hip.", "libc10_xpu.",   "libcudart.",     "libamdhip64.",  "libsycl."};
  return std::any_of(std::begin(kKnown), std::end(kKnown),
                     [&](const char* prefix) { return name.starts_with(prefix); });
}

void judge_symbol(const ElfSymbol& symbol, const VariantName& variant, std::vector<std::string>& problems) {
  const std::string& name = symbol.name;
  const bool stable = variant.framework == Framework::kTorchStableAbi;
  std::string limit;
  if (too_new(symbol.version, limit)) {
    problems.push_back(
        cat("wants ", shown(name), " of ", shown(symbol.version), ", newer than manylinux_2_28's ", limit));
  } else if (!symbol.version.empty() || symbol.weak) {
    return;  // a library that is named gives it, or nothing has to
  } else if (is_torch_cpp(name)) {
    if (stable) problems.push_back(cat("wants ", shown(name), ", which is not in torch's stable ABI"));
  } else if (name.starts_with("_Py")) {
    problems.push_back(cat("wants ", shown(name), ", which is not in Python's stable ABI"));
  } else if (name.starts_with("Py")) {
    if (stable)
      problems.push_back(cat("wants ", shown(name), ", which a host without Python has not: declare it weak"));
  } else if (name.starts_with("torch_") || name.starts_with("aoti_torch_")) {
    const auto level = level_of(name);
    if (!level) {
      problems.push_back(cat("wants ", shown(name), ", which no known stable ABI of torch has"));
    } else if (stable && *level > variant.version) {
      problems.push_back(cat("wants ", shown(name), " of torch ", level->str(),
                             "'s stable ABI, newer than its variant's ", variant.version.str()));
    }
  } else if (!name.starts_with("cuda") && !name.starts_with("__cuda") && !name.starts_with("hip") &&
             !name.starts_with("__hip") && !name.starts_with("TVMFFI") && name.rfind("_ZN4sycl", 0) != 0) {
    problems.push_back(cat("wants ", shown(name), ", which no library that it names is known to have"));
  }
}

}  // namespace

std::optional<MajorMinor> stable_abi_level(const Elf& elf) {
  std::optional<MajorMinor> highest;
  for (const ElfSymbol& symbol : elf.undefined) {
    if (is_torch_cpp(symbol.name)) return std::nullopt;
    if (!symbol.name.starts_with("torch_") && !symbol.name.starts_with("aoti_torch_")) continue;
    const auto level = level_of(symbol.name);
    if (!level) return std::nullopt;
    if (!highest || *level > *highest) highest = level;
  }
  return highest;
}

std::vector<std::string> check_abi(const Elf& elf, const VariantName& variant, const std::string& id) {
  std::vector<std::string> problems;
  if (elf.machine != variant.cpu)
    problems.push_back(cat("is built for ", elf.machine, ", its variant for ", variant.cpu));
  for (const ElfSymbol& symbol : elf.undefined) judge_symbol(symbol, variant, problems);
  for (const std::string& library : elf.needed) {
    if (!known_library(library))
      problems.push_back(cat("is linked with ", shown(library), ", which not every machine has"));
  }
  const std::string init = "PyInit_" + id;
  const bool python =
      std::any_of(elf.defined.begin(), elf.defined.end(), [&](const ElfSymbol& s) { return s.name == init; });
  if (!python && variant.framework != Framework::kTvmFfi) {
    problems.push_back(cat("does not export ", init, ", by which Python imports it"));
  }
  return problems;
}

std::vector<std::string> check_variant(const fs::path& folder) {
  std::vector<std::string> problems;
  KernelMetadata metadata;
  const auto name = VariantName::parse(folder.filename().string());
  if (!name) problems.push_back(cat("'", folder.filename().string(), "' is no name of a variant"));
  try {
    const fs::path file = folder / "metadata.json";
    metadata = parse_metadata(read_file(file), file.string());
  } catch (const Error& error) {
    problems.emplace_back(error.what());
    return problems;
  }
  if (!metadata.digests) {
    problems.emplace_back("metadata.json has no digest: run `hotswap kernel hash`");
  } else {
    try {
      verify_digests(folder, *metadata.digests);
    } catch (const Error& error) {
      problems.push_back(error.got());
    }
  }
  for (const std::string& depend : metadata.python_depends) {
    if (python_requirement(depend, metadata.backend)) continue;
    problems.push_back(cat("metadata.json: kernels may not depend on '", shown(depend), "'"));
  }
  if (!fs::is_regular_file(folder / "__init__.py") &&
      !fs::is_regular_file(folder / metadata.python_name() / "__init__.py")) {
    problems.emplace_back("no __init__.py: Python finds no kernel module");
  }
  if (!name || name->framework == Framework::kNoarch) return problems;
  if (!fs::is_regular_file(folder / (metadata.id + ".abi3.so")) && name->framework != Framework::kTvmFfi) {
    problems.push_back(cat("no ", metadata.id, ".abi3.so, the library of its id"));
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (!file.ends_with(".so")) continue;
    try {
      for (const std::string& problem : check_abi(read_elf(entry.path()), *name, metadata.id)) {
        problems.push_back(cat(file, ": ", problem));
      }
    } catch (const Error& error) {
      problems.push_back(cat(file, ": ", error.got()));
    }
  }
  return problems;
}

}  // namespace hotswap
