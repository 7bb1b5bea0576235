#include "hotswap/models/quantize/quantize.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/all.h>
#include <ATen/ops/isfinite.h>

#include <cmath>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/base/staged.h"
#include "hotswap/layers/linear.h"
#include "hotswap/models/auto.h"
#include "hotswap/models/family.h"
#include "hotswap/models/formats/quantised.h"
#include "hotswap/models/model_folder.h"
#include "hotswap/models/quantize/quantize_impl.h"
#include "hotswap/models/text_part.h"

namespace hotswap {
namespace quantizing {

at::Tensor finite_floats(const std::string& name, const at::Tensor& tensor) {
  at::Tensor floats = tensor.detach().to(at::kFloat).contiguous();
  if (at::isfinite(floats).all().item<bool>()) return floats;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("finite elements in the tensor '", name, "'"),
               .got = "infinite ones or NaN",
               .next = "fetch the model again, or repair its weights: no quantisation has a meaning for them"});
}

namespace {

namespace fs = std::filesystem;

// Families of which what is written comes back the same, here and in its own reader.
constexpr const char* kFamilies[] = {"llama", "qwen2", "qwen3"};

const QuantizeFormat& format_of(const std::string& name) {
  std::vector<std::string> known;
  for (const QuantizeFormat& format : quantize_formats()) {
    if (name == format.name) return format;
    known.emplace_back(format.name);
  }
  throw Error({.kind = ErrorKind::kInvalidArgument,
               .wanted = cat("a format among ", join(known)),
               .got = cat("'", name, "'"),
               .next = "name one of them"});
}

[[noreturn]] void refuse_to_quantize(ErrorKind kind, std::string expected, std::string got, std::string next) {
  throw Error({.kind = kind, .wanted = std::move(expected), .got = std::move(got), .next = std::move(next)});
}

// Is `inner` in `outer`, or the same?
bool is_inside_folder(const fs::path& inner, const fs::path& outer) {
  const fs::path a = fs::weakly_canonical(inner), b = fs::weakly_canonical(outer);
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).second == b.end();
}

void check_target(const fs::path& out, const QuantizeFormat& format, const fs::path& model, bool replace) {
  const bool named_gguf = out.extension() == ".gguf";
  if (out.filename().empty() || named_gguf != format.is_gguf) {
    refuse_to_quantize(ErrorKind::kInvalidArgument,
                       format.is_gguf ? cat("the name of a file that ends in .gguf for ", format.name)
                                      : cat("the name of a folder, without .gguf, for ", format.name),
                       cat("'", out.string(), "'"), "name the result accordingly");
  }
  const fs::path parent = out.has_parent_path() ? out.parent_path() : fs::path(".");
  if (!fs::is_directory(parent)) {
    refuse_to_quantize(ErrorKind::kNotFound, cat("a folder for ", out.filename().string()),
                       cat("none at ", parent.string()), "make it first");
  }
  if (!fs::exists(fs::symlink_status(out))) return;
  if (!replace) {
    refuse_to_quantize(ErrorKind::kInvalidArgument, cat("a new name for the result"),
                       cat(out.string(), ", which exists"), "take another name, or replace it on purpose (--replace)");
  }
  if (format.is_gguf == fs::is_directory(out) || is_inside_folder(model, out)) {
    refuse_to_quantize(ErrorKind::kInvalidArgument,
                       format.is_gguf
                           ? cat("a file to replace at ", out.string())
                           : cat("a folder to replace at ", out.string(), ", without the model that is read"),
                       "something else", "take another name");
  }
}

// Plain weights of a family that is written.
std::shared_ptr<CausalLM> open_model(const fs::path& folder) {
  if (fs::is_regular_file(folder)) {
    refuse_to_quantize(ErrorKind::kUnsupported, "a folder with config.json and plain weights", folder.string(),
                       "quantise from the model's safetensors checkpoint: what a GGUF file holds was rounded before");
  }
  if (fs::is_regular_file(folder / "config.json")) {
    const Json config = Json::read(folder / "config.json");
    if (config.has("quantization_config")) {
      refuse_to_quantize(ErrorKind::kUnsupported, "plain weights to quantise",
                         cat("quantization_config in ", config.where()),
                         "quantise from the model's plain checkpoint: these weights were rounded before");
    }
    const std::string type = family_of(text_part(config)).model_type;
    if (std::find(std::begin(kFamilies), std::end(kFamilies), type) == std::end(kFamilies)) {
      refuse_to_quantize(
          ErrorKind::kUnsupported, cat("a model of a family that is written quantised: ", join(kFamilies)),
          cat('"', type, "\" in ", config.where()), "take llama.cpp's or llm-compressor's own tools for this family");
    }
  }
  return AutoModelForCausalLM::from_pretrained(folder);
}

std::set<std::string> linears_of(CausalLM& model) {
  std::set<std::string> names;
  model.each_module([&](const std::string& name, Module& part) {
    if (dynamic_cast<Linear*>(&part) != nullptr && name != "lm_head") names.insert(name + ".weight");
  });
  return names;
}

TensorMap tensors_of(CausalLM& model) {
  TensorMap all = named_tensors(model);
  if (model.config().tie_word_embeddings)
    std::erase_if(all, [](const auto& entry) { return entry.first == "lm_head.weight"; });
  return all;
}

// The file's or folder's tensors under the model's names.
std::unique_ptr<const Checkpoint> open_written(const fs::path& path, const QuantizeFormat& format, CausalLM& model) {
  const Family& family = model.family();
  if (!format.is_gguf) {
    auto stored = dequantising(open_checkpoint(path), Json::read(path / "config.json"));
    return in_model_terms(std::move(stored), family.tensor_rules(model.config()), model);
  }
  auto stored = open_checkpoint(path.parent_path(), path.filename().string());  // its name ends otherwise by now
  return in_model_terms(std::move(stored), family.gguf_rules(model.config()), model);
}

void measure(QuantizedTensor& result, const at::Tensor& before, const at::Tensor& after, const std::string& format) {
  const at::Tensor exact = before.detach().to(at::kFloat);
  if (after.sizes() != exact.sizes()) {
    refuse_to_quantize(ErrorKind::kInternal,
                       cat("'", result.name, "' as [", join(exact.sizes()), "] in what was written"),
                       cat("[", join(after.sizes()), "]"), "report it with the model's name");
  }
  result.squared_error = after.sub(exact).square().sum(at::kDouble).item<double>();
  result.squared_norm = exact.square().sum(at::kDouble).item<double>();
  if (std::isfinite(result.squared_error)) return;
  refuse_to_quantize(ErrorKind::kUnsupported, cat("weights within the range of ", result.type, ", for ", format),
                     cat("greater ones in '", result.name, "'"), "take another format: its scales are of 16 bits here");
}

uint64_t size_of(const fs::path& path) {
  if (fs::is_regular_file(path)) return fs::file_size(path);
  uint64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") bytes += entry.file_size();
  }
  return bytes;
}

}  // namespace
}  // namespace quantizing

const std::vector<QuantizeFormat>& quantize_formats() {
  static const std::vector<QuantizeFormat> formats = {
      {"q8_0", true, "a GGUF file: 8 bits a weight and a scale for 32"},
      {"q4_k_m", true, "a GGUF file: 4 bits, 6 where errors show, as llama.cpp's Q4_K_M mixes them"},
      {"fp8_block", false, "a folder: e4m3 with a scale for each block of 128 x 128, transformers' fp8"},
      {"int4_g128", false, "a folder: 4 bits with a scale for 128 columns, compressed-tensors' pack-quantized"}};
  return formats;
}

double QuantizedTensor::relative_rms() const {
  return squared_error == 0 ? 0 : std::sqrt(squared_error / squared_norm);
}

QuantizeReport quantize(const std::filesystem::path& name, const std::filesystem::path& out,
                        const QuantizeOptions& options) {
  using namespace quantizing;
  const at::NoGradGuard no_grad;
  const QuantizeFormat& format = format_of(options.format);
  QuantizeReport report;
  report.folder = model_folder(name, options.revision);
  check_target(out, format, report.folder, options.replace);
  const std::shared_ptr<CausalLM> model = open_model(report.folder);
  const TensorMap tensors = tensors_of(*model);
  int64_t done = 0;
  const auto advance = [&](const std::string& tensor) {
    if (options.on_progress) options.on_progress(tensor, ++done, 2 * static_cast<int64_t>(tensors.size()));
  };
  const Source source{.model = *model, .tensors = tensors, .linears = linears_of(*model), .advance = advance};
  Staged staged(out);
  const Types types = (format.is_gguf ? write_gguf : write_folder)(source, format.name, staged.path());
  if (format.is_gguf) check_description(staged.path(), *model);
  const auto written = open_written(staged.path(), format, *model);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [tensor_name, tensor] = tensors[i];
    QuantizedTensor result{.name = tensor_name, .type = types[i], .shape = tensor.sizes().vec()};
    result.quantized = !types[i].empty() && types[i] != "F32" && types[i] != "F16";
    if (types[i].empty()) result.type = dtype_name(tensor.scalar_type());
    if (!result.quantized && source.linears.contains(tensor_name)) report.left_plain.push_back(tensor_name);
    measure(result, tensor, written->tensor(tensor_name, at::kFloat), format.name);
    report.bytes_before += tensor.nbytes();
    report.tensors.push_back(std::move(result));
    advance(tensor_name);
  }
  report.bytes = size_of(staged.path());
  staged.commit();
  return report;
}

}  // namespace hotswap
