#include "hotswap/models/encoder_models/sentence_stages.h"

#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/tanh.h>

#include "hotswap/base/error.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/formats/weights.h"

namespace hotswap {
namespace {

struct DenseActivation {
  const char* name;  // the end of the config's activation_function
  Tensor (*run)(const Tensor& x);
};
constexpr DenseActivation kDenseActivations[] = {
    {".Tanh", [](const Tensor& x) { return at::tanh(x); }},
    {".Identity", [](const Tensor& x) { return x; }},
    {".ReLU", [](const Tensor& x) { return at::relu(x); }},
    {".GELU", [](const Tensor& x) { return at::gelu(x); }},
    {".SiLU", [](const Tensor& x) { return at::silu(x); }},
    {".Sigmoid", [](const Tensor& x) { return at::sigmoid(x); }},
};

const DenseActivation& dense_activation(const Json& config) {
  const auto name = config.get<std::string>("activation_function", "torch.nn.modules.activation.Tanh");
  std::vector<std::string> known;
  for (const DenseActivation& one : kDenseActivations) {
    if (name.starts_with("torch.nn.") && name.ends_with(one.name)) return one;
    known.push_back(std::string("torch.nn") + one.name);
  }
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = cat("an activation_function among ", join(known)),
               .got = cat('"', name, "\" in ", config.where()),
               .next = "take another model: this is not implemented"});
}

Tensor weight_of_stage(const Checkpoint& file, const std::string& name, const std::vector<int64_t>& shape) {
  if (file.has(name) && file.shape(name) == shape) return file.tensor(name, at::kFloat).clone();
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("a tensor ", name, " [", join(shape), "] in ", file.where()),
               .got = file.has(name) ? cat("[", join(file.shape(name)), "]") : "none",
               .next = "check that config.json and the weights of that folder belong to one model"});
}

// activation(linear(x)), and where use_residual is on, x beside it
class DenseStage : public VectorStage {
 public:
  explicit DenseStage(const std::filesystem::path& folder) {
    const Json config = Json::read(folder / "config.json");
    in_ = positive(config, "in_features");
    out_ = positive(config, "out_features");
    activation_ = &dense_activation(config);
    const std::string sentence = "sentence_embedding";
    refuse_if(config.get<std::string>("module_input_name", sentence) != sentence ||
                  config.get<std::string>("module_output_name", sentence) != sentence,
              config, "a dense layer over tokens (module_input_name)");
    const auto file = open_checkpoint(folder);
    weight_ = weight_of_stage(*file, "linear.weight", {out_, in_});
    if (config.get<bool>("bias", true)) bias_ = weight_of_stage(*file, "linear.bias", {out_});
    adds_input_ = config.get<bool>("use_residual", false);
    if (adds_input_ && in_ != out_) residual_ = weight_of_stage(*file, "residual.weight", {out_, in_});
  }
  Tensor forward(const Tensor& x) const override {
    const Tensor y = activation_->run(at::linear(x, weight_, bias_));
    if (!adds_input_) return y;
    return at::add(y, residual_.defined() ? at::linear(x, residual_) : x);
  }
  int64_t out(int64_t in) const override {
    if (in == in_) return out_;
    throw Error({.kind = ErrorKind::kCorrupt,
                 .wanted = cat("vectors of ", in_, " elements for the dense layer, its in_features"),
                 .got = cat(in),
                 .next = "check that the parts that modules.json names belong to one model"});
  }

 private:
  int64_t in_ = 0, out_ = 0;
  const DenseActivation* activation_ = nullptr;
  Tensor weight_;               // [out, in]
  std::optional<Tensor> bias_;  // [out]
  bool adds_input_ = false;
  Tensor residual_;  // [out, in], or undefined
};

class NormStage : public VectorStage {
 public:
  explicit NormStage(const std::filesystem::path& folder) {
    const int64_t dim = positive(Json::read(folder / "config.json"), "dimension");
    const auto file = open_checkpoint(folder);
    weight_ = weight_of_stage(*file, "norm.weight", {dim});
    bias_ = weight_of_stage(*file, "norm.bias", {dim});
  }
  Tensor forward(const Tensor& x) const override { return at::layer_norm(x, weight_.sizes(), weight_, bias_, 1e-5); }

 private:
  Tensor weight_, bias_;  // [dim]
};

class UnitStage : public VectorStage {
 public:
  Tensor forward(const Tensor& x) const override { return unit_length(x); }
  bool normalizes() const override { return true; }
};

class NothingStage : public VectorStage {  // dropout, which inference leaves out
 public:
  Tensor forward(const Tensor& x) const override { return x; }
};

[[noreturn]] void refuse_modules(const std::string& got, const Json& modules) {
  throw Error({.kind = ErrorKind::kUnsupported,
               .wanted = "modules Transformer, Pooling, then any of Dense, LayerNorm, Dropout and Normalize",
               .got = cat(got, " in ", modules.where()),
               .next = "take another model: this is not implemented"});
}

std::unique_ptr<VectorStage> stage_of(const std::string& type, const std::filesystem::path& folder,
                                      const Json& modules) {
  if (type == "Dense") return std::make_unique<DenseStage>(folder);
  if (type == "LayerNorm") return std::make_unique<NormStage>(folder);
  if (type == "Dropout") return std::make_unique<NothingStage>();
  if (type == "Normalize") return std::make_unique<UnitStage>();
  refuse_modules(type, modules);
}

// A folder below the model's: modules.json is a stranger's.
std::filesystem::path folder_below(const std::filesystem::path& folder, const Json& module) {
  const std::filesystem::path path = module.get<std::string>("path", "");
  for (const auto& part : path) {
    if (part == ".." || path.is_absolute()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = "a folder below the model's as a module's path",
                   .got = cat(path.string(), " in ", module.where()),
                   .next = "correct modules.json"});
    }
  }
  return path.empty() ? folder : folder / path;
}

}  // namespace

Tensor unit_length(const Tensor& x) {
  const Tensor norm = at::linalg_vector_norm(x, 2, at::IntArrayRef{-1}, /*keepdim=*/true);
  return at::div(x, norm.clamp_min(1e-12));
}

SentenceStages read_sentence_stages(const std::filesystem::path& folder) {
  SentenceStages stages{.model_folder = folder};
  if (!std::filesystem::is_regular_file(folder / "modules.json")) return stages;
  const Json modules = Json::read(folder / "modules.json");
  size_t index = 0;
  for (const Json& module : modules.elements()) {
    const auto type = module.at<std::string>("type");
    const std::string name = type.substr(type.rfind('.') + 1);
    const bool is_known = type.starts_with("sentence_transformers.");
    const auto below = folder_below(folder, module);
    if (!is_known || (index == 0) != (name == "Transformer") || (index == 1) != (name == "Pooling")) {
      refuse_modules(cat(type, " as number ", index), modules);
    }
    if (index == 0) stages.model_folder = below;
    if (index == 1) stages.pooling = Pooling::read(Json::read(below / "config.json"));
    if (index > 1) stages.after.push_back(stage_of(name, below, modules));
    ++index;
  }
  if (index < 2) refuse_modules(cat(index, " modules"), modules);
  return stages;
}

}  // namespace hotswap
