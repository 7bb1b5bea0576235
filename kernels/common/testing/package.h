// Host side of tests and benchmarks: loads the staged package as any C++ host does (id from metadata.json, dlopen, ops
// by c10::Dispatcher) and calls its ops by name. Torch's C++ interface; kernels never include this.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/common/testing/graph_capture.h"

namespace kernels {

class Package {
 public:
  explicit Package(const std::string& dir) {
    std::ifstream file(dir + "/metadata.json");
    std::stringstream text;
    text << file.rdbuf();
    const std::string json = text.str(), key = "\"id\": \"";
    const size_t at = json.find(key);
    if (at == std::string::npos)
      throw std::runtime_error(dir + "/metadata.json: expected an id; build the package first");
    id_ = json.substr(at + key.size(), json.find('"', at + key.size()) - at - key.size());
    const std::string path = dir + "/" + id_ + ".abi3.so";
    if (dlopen(path.c_str(), RTLD_NOW) == nullptr) throw std::runtime_error(dlerror());
  }
  const std::string& id() const { return id_; }

  c10::OperatorHandle handle(const std::string& op) const {
    return c10::Dispatcher::singleton().findSchemaOrThrow((id_ + "::" + op).c_str(), "");
  }

  // The cached form for hot paths: static const auto op = package().typed<Tensor(const Tensor&, double)>("name");
  template <class Signature>
  c10::TypedOperatorHandle<Signature> typed(const std::string& op) const {
    return handle(op).typed<Signature>();
  }

  // call("rms_norm_fwd", x, weight, 1e-6, 0.0, "llama"): every output, in order; what is left out at the end has the
  // schema's default
  template <class... Args>
  std::vector<c10::IValue> call_values(const std::string& op, Args&&... args) const {
    std::vector<c10::IValue> stack{c10::IValue(std::forward<Args>(args))...};
    const auto& wanted = handle(op).schema().arguments();
    while (stack.size() < wanted.size() && wanted[stack.size()].default_value())
      stack.push_back(*wanted[stack.size()].default_value());
    const bool has_tensors = (std::is_convertible_v<Args, at::Tensor> || ...);
    if (has_tensors && in_graphs())
      call_in_graph(handle(op), stack);
    else
      handle(op).callBoxed(stack);
    return stack;
  }
  template <class... Args>
  std::vector<at::Tensor> call(const std::string& op, Args&&... args) const {
    std::vector<at::Tensor> out;
    for (c10::IValue& v : call_values(op, std::forward<Args>(args)...)) out.push_back(std::move(v).toTensor());
    return out;
  }
  int64_t call_count(const std::string& op) const { return call_values("call_count", op)[0].toInt(); }
  std::string isa() const { return call_values("isa")[0].toStringRef(); }

 private:
  std::string id_;
};

// Libtorch's CUDA half, which a program that links only the CPU's loads before its first GPU tensor. False where this
// torch has none.
inline bool load_torch_cuda() {
  static const bool loaded = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr;
  return loaded;
}

#ifdef HOTSWAP_PACKAGE_DIR
inline bool on_cuda() { return test_device().is_cuda(); }
// The folder of built packages: HOTSWAP_PACKAGES, or packages/ beside the program's folder, wherever both were moved.
inline std::string packages_dir() {
  const char* given = std::getenv("HOTSWAP_PACKAGES");
  if (given != nullptr && *given != '\0') return given;
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "packages";
}
inline std::string package_dir() {
  if (!on_cuda()) return packages_dir() + "/" + HOTSWAP_PACKAGE_DIR;
#ifdef HOTSWAP_CUDA_PACKAGE_DIR
  if (load_torch_cuda()) return packages_dir() + "/" + HOTSWAP_CUDA_PACKAGE_DIR;
#endif
  throw std::runtime_error("expected a package with CUDA kernels; this was built without; build with ./x --cuda build");
}
inline const Package& package() {
  static const Package loaded(package_dir());
  return loaded;
}
#endif

}  // namespace kernels
