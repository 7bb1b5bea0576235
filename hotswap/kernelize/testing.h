// For this room's tests: copies of built packages to tamper with, and a small model with one of each slot.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "hotswap/base/test_support.h"
#include "hotswap/kernelize/foreign/foreign.h"
#include "hotswap/kernelize/kernelize.h"
#include "hotswap/kernelize/package/package.h"
#include "hotswap/layers/activation.h"
#include "hotswap/layers/loss.h"
#include "hotswap/layers/mlp.h"
#include "hotswap/layers/norm.h"
#include "hotswap/layers/rotary.h"

namespace hotswap::test_support {

// A private build of the bundled package `name` under an id of its own, which may be changed at will:
// <folder>/<name>/build/<variant>/. Its library is the built one with the id replaced in its bytes, so that both can
// live in one process.
class PackageCopy {
 public:
  explicit PackageCopy(const std::string& name);
  std::filesystem::path root() const { return folder_.path() / name_; }
  const std::filesystem::path& variant() const { return variant_; }
  const std::string& id() const { return id_; }
  std::filesystem::path library() const { return variant_ / (id_ + ".abi3.so"); }

  using Edit = std::function<void(nlohmann::ordered_json&)>;
  void edit_metadata(const Edit& edit);
  void edit_layers(const Edit& edit);  // and puts its new digest into metadata.json
  void write(const std::string& file, const std::string& bytes);
  void sign();  // digests of all files as they are now

 private:
  TempFolder folder_;
  std::string name_, id_;
  std::filesystem::path variant_;
};

// Which libraries of testdata/marking_library.cpp were loaded while this object lives.
class Marks {
 public:
  Marks() { std::filesystem::create_directories(folder_); }
  ~Marks() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Marks(const Marks&) = delete;
  Marks& operator=(const Marks&) = delete;
  bool none() const { return std::filesystem::is_empty(folder_); }
  bool has(const PackageCopy& package) const { return std::filesystem::exists(folder_ / package.library().filename()); }

 private:
  const std::filesystem::path folder_ = "/tmp/hotswap-test-marks-" + std::to_string(::getpid());
};

// What loading it says: an error's text, or "no error".
inline std::string load(const PackageCopy& copy) {
  return message_of([&] { load_package(read_manifest(copy.variant())); });
}

// A package as kernel-builder leaves it for Python, without layers.json: build/<variant>/ with a built library under a
// new id, Python's files and digests.
class ForeignCopy {
 public:
  static constexpr const char* kStableVariant = "torch-stable-abi210-cpu-x86_64-linux";
  // library: of kernelize/testdata. `name` is metadata.json's.
  ForeignCopy(const std::string& name, const std::string& library, const std::string& variant = kStableVariant);
  const std::filesystem::path& root() const { return folder_.path(); }
  std::filesystem::path variant() const { return root() / "build" / variant_; }
  const std::string& id() const { return id_; }
  std::filesystem::path library() const { return variant() / (id_ + ".abi3.so"); }
  const Package& load() const { return load_package(read_package(variant(), bundled_packages())); }

 private:
  TempFolder folder_;
  std::string variant_, id_;
};

// The first row of a slot's layer name. Error: there is none.
const KernelRow& row_of(const KernelReport& report, const std::string& layer);

class TinyModel : public Module {
 public:
  TinyModel(at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU);
  Tensor forward(const Tensor& x) const;  // [batch, time, 16] -> scalar

  RMSNorm norm;
  AddRMSNorm add_norm;
  LayerNorm layer_norm;
  GatedMLP mlp;
  Activation activation;
  RotaryPosEmb rotary;
  CausalLMLoss loss;
  Linear head;
  Kernelizer kernels;

 protected:
  void on_mode_change() override { kernels.on_mode_change(*this); }
};

bool same_bits(const Tensor& a, const Tensor& b);          // bit for bit
double difference(const Tensor& got, const Tensor& want);  // relative L2, in float64; NaN where either has one

}  // namespace hotswap::test_support
