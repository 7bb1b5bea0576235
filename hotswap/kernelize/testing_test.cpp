#include "hotswap/kernelize/testing.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <random>

#include "hotswap/base/sha256.h"
#include "hotswap/hub/package/digest.h"

namespace hotswap::test_support {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

PackageCopy::PackageCopy(const std::string& name) : name_(name) {
  const auto bundled = bundled_packages();
  const auto found = std::find_if(bundled.begin(), bundled.end(),
                                  [&](const Manifest& m) { return m.name == name && m.backend == "cpu"; });
  if (found == bundled.end())
    throw Error(
        {.kind = ErrorKind::kNotFound, .wanted = "the built package " + name, .got = "none", .next = "build it"});
  variant_ = root() / "build" / found->variant;
  fs::create_directories(variant_.parent_path());
  fs::copy(found->folder, variant_, fs::copy_options::recursive);
  // As long as the old one, so that the bytes of the library stay where they are.
  static std::mt19937 random{std::random_device{}()};
  id_ = found->id;
  for (size_t i = id_.size() - 7; i < id_.size(); ++i) id_[i] = "ghijklmnopqrstuv"[random() % 16];
  std::string bytes = read_file(found->library());
  for (size_t at = bytes.find(found->id); at != bytes.npos; at = bytes.find(found->id, at)) {
    bytes.replace(at, id_.size(), id_);
  }
  fs::remove(variant_ / found->library().filename());
  write_file(library(), bytes);
  edit_metadata([&](Ordered& metadata) { metadata["id"] = id_; });
  sign();
}

void PackageCopy::edit_metadata(const Edit& edit) {
  Ordered metadata = Ordered::parse(read_file(variant_ / "metadata.json"));
  edit(metadata);
  write("metadata.json", metadata.dump(2));
}

void PackageCopy::edit_layers(const Edit& edit) {
  Ordered layers = Ordered::parse(read_file(variant_ / "layers.json"));
  edit(layers);
  write("layers.json", layers.dump(2));
  sign();
}

void PackageCopy::write(const std::string& file, const std::string& bytes) {
  fs::create_directories((variant_ / file).parent_path());
  write_file(variant_ / file, bytes);
}

void PackageCopy::sign() {
  edit_metadata([&](Ordered& metadata) {
    auto& files = metadata["digest"]["files"] = Ordered::object();
    for (const auto& entry : fs::recursive_directory_iterator(variant_)) {
      const auto name = entry.path().lexically_relative(variant_).generic_string();
      if (entry.is_regular_file() && name != "metadata.json") files[name] = to_base64(sha256_file(entry.path()));
    }
  });
}

ForeignCopy::ForeignCopy(const std::string& name, const std::string& library, const std::string& variant)
    : variant_(variant), id_("_foreign_cpu_0000000") {
  static int made = 0;
  const std::string old = id_;
  std::snprintf(id_.data() + id_.size() - 7, 8, "%07d", ++made % 10000000);
  std::string bytes = read_file(test_library(library));
  for (size_t at = bytes.find(old); at != bytes.npos; at = bytes.find(old, at)) bytes.replace(at, id_.size(), id_);
  fs::create_directories(this->variant());
  write_file(this->library(), bytes);
  write_file(this->variant() / "__init__.py", "from ._ops import ops\n");
  write_file(this->variant() / "metadata.json",
             cat(R"({"name": ")", name, R"(", "id": ")", id_,
                 R"(", "version": 1, "license": "mit", "python-depends": [], "backend": {"type": "cpu"}})"));
  write_digests(this->variant());
}

const KernelRow& row_of(const KernelReport& report, const std::string& layer) {
  for (const KernelRow& row : report.rows) {
    if (row.layer == layer) return row;
  }
  throw Error({.kind = ErrorKind::kNotFound, .wanted = "a row " + layer, .got = "none", .next = "print the report"});
}

TinyModel::TinyModel(at::ScalarType dtype, at::Device device)
    : norm(16, {}),
      add_norm(16, {}),
      layer_norm(16, 1e-5),
      mlp({.dim = 16, .hidden = 24, .activation = "silu"}),
      activation(activation_kind("gelu", "a test")),
      head(16, 33, /*with_bias=*/false) {
  own("norm", norm);
  own("add_norm", add_norm);
  own("layer_norm", layer_norm);
  own("mlp", mlp);
  own("activation", activation);
  own("rotary", rotary);
  own("loss", loss);
  own("head", head);
  each_tensor([&](const std::string&, Tensor& t) { t = device.is_meta() ? t : at::randn(t.sizes(), at::kFloat); });
  to(dtype, device);
  requires_grad(true);
}

Tensor TinyModel::forward(const Tensor& x) const {
  const int64_t batch = x.size(0), time = x.size(1);
  const auto [y, h] = add_norm.forward(norm.forward(x), x);
  const Tensor m = activation.forward(mlp.forward(y));           // [batch, time, 16]
  const Tensor q = m.view({batch, time, 2, 8}).transpose(1, 2);  // [batch, 2, time, 8]
  const Tensor angle = at::randn({1, time, 8}, at::TensorOptions().dtype(at::kFloat)).fill_(0.3).to(x.dtype());
  const auto [q_turned, k_turned] = rotary.forward(q, q * 2, {angle.cos(), angle.sin()});
  const Tensor hidden = layer_norm.forward(h + (q_turned + k_turned).transpose(1, 2).reshape({batch, time, 16}));
  const Tensor labels = at::zeros({batch, time}, at::kLong);
  const LossArguments arguments{.labels = labels, .items = std::nullopt};
  return loss.fuses() ? loss.from_hidden(hidden, head.data(), arguments)
                      : loss.from_logits(head.forward(hidden), arguments);
}

bool same_bits(const Tensor& a, const Tensor& b) { return a.dtype() == b.dtype() && at::equal(a, b); }

double difference(const Tensor& got, const Tensor& want) {
  const Tensor a = got.detach().to(at::kDouble), b = want.detach().to(at::kDouble);
  EXPECT_EQ(a.sizes(), b.sizes());
  return (a - b).norm().item<double>() / std::max(b.norm().item<double>(), 1e-30);
}

}  // namespace hotswap::test_support
