// A model as a folder that transformers loads: FP8 in blocks (quant_method "fp8", as DeepSeek and Qwen publish it), or
// int4 in groups (compressed-tensors' pack-quantized).
#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>

#include "hotswap/base/error.h"
#include "hotswap/base/file.h"
#include "hotswap/layers/linear.h"
#include "hotswap/layers/parallel.h"
#include "hotswap/models/config.h"
#include "hotswap/models/formats/safetensors.h"
#include "hotswap/models/formats/scale_search.h"
#include "hotswap/models/quantize/quantize_impl.h"
#include "hotswap/models/tokenizer_files.h"

namespace hotswap::quantizing {
namespace {

using OutJson = nlohmann::ordered_json;

constexpr int64_t kFp8Block = 128, kGroup = 128;
constexpr float kMaxE4m3 = 448;

struct Part {
  const char* end;  // of the tensor's name, after the module's
  at::Tensor tensor;
};

// weight = e4m3 * weight_scale_inv of its block of 128 rows and 128 columns
std::vector<Part> fp8_block(const at::Tensor& weight, at::ScalarType /*dtype*/) {
  const int64_t rows = weight.size(0) / kFp8Block, columns = weight.size(1) / kFp8Block;
  const at::Tensor blocks = weight.view({rows, kFp8Block, columns, kFp8Block});
  const at::Tensor extreme = blocks.abs().amax({1, 3}, /*keepdim=*/true);
  // A block of zeros has no scale of its own, nor has one whose scale would be a subnormal without an inverse.
  const at::Tensor scale = at::where(extreme < 1e-30, at::ones_like(extreme), extreme / kMaxE4m3);
  const at::Tensor codes = at::clamp(blocks / scale, -kMaxE4m3, kMaxE4m3).to(at::kFloat8_e4m3fn);
  return {{"weight", codes.view(weight.sizes())}, {"weight_scale_inv", scale.view({rows, columns}).contiguous()}};
}

// Of float32 without its last eight bits, where packed blocks have the zero (weight_blocks.h): kept exactly there.
float as_stored(float scale, at::ScalarType dtype) {
  if (dtype == at::kBFloat16) return c10::BFloat16(scale);
  if (dtype == at::kHalf) return c10::Half(scale);
  return std::bit_cast<float>((std::bit_cast<uint32_t>(scale) + 0x80U) & ~0xFFU);
}

// weight = (code - 8) * scale of its group of 128 columns; eight codes an int32, the first in the low bits
std::vector<Part> int4_groups(const at::Tensor& weight, at::ScalarType dtype) {
  const int64_t out = weight.size(0), in = weight.size(1), groups = in / kGroup;
  at::Tensor packed = at::empty({out, in / 8}, at::TensorOptions().dtype(at::kInt));
  at::Tensor scales = at::empty({out, groups}, at::TensorOptions().dtype(at::kFloat));
  const float* from = weight.const_data_ptr<float>();
  int32_t* words = packed.mutable_data_ptr<int32_t>();
  float* kept = scales.mutable_data_ptr<float>();
  parallel_for(0, out * groups, 64, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      const float* x = from + g * kGroup;
      const float scale = best_scale<kGroup>(x, -8, [&](float s) { return as_stored(s, dtype); });
      const float inverse = inverse_of(scale);
      kept[g] = scale;
      for (int64_t word = 0; word < kGroup / 8; ++word) {
        uint32_t bits = 0;
        for (int i = 0; i < 8; ++i) {
          const int code = static_cast<int>(code_of(x[8 * word + i] * inverse, -8, 7)) + 8;
          bits |= static_cast<uint32_t>(code) << 4 * i;
        }
        words[g * kGroup / 8 + word] = static_cast<int32_t>(bits);
      }
    }
  });
  const at::Tensor shape = at::tensor(std::vector<int64_t>{out, in}, at::TensorOptions().dtype(at::kLong));
  return {{"weight_packed", packed}, {"weight_scale", scales.to(dtype)}, {"weight_shape", shape}};
}

OutJson fp8_settings(const std::vector<std::string>& plain) {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {kFp8Block, kFp8Block}},
          {"modules_to_not_convert", plain}};
}

OutJson int4_settings(const std::vector<std::string>& plain) {
  const OutJson weights = {{"num_bits", 4},       {"type", "int"},        {"symmetric", true},
                           {"strategy", "group"}, {"group_size", kGroup}, {"dynamic", false}};
  const OutJson group = {
      {"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}, {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", plain},
          {"kv_cache_scheme", nullptr}};
}

struct Writer {
  const char* format;
  const char* type;
  int64_t rows, columns;  // a weight's are multiples of these
  std::vector<Part> (*quantise)(const at::Tensor& weight, at::ScalarType dtype);
  OutJson (*settings)(const std::vector<std::string>& plain_modules);
};
// transformers' reader of FP8 divides a weight into as many blocks as there are scales, of one size: where the last
// block is smaller than 128, it takes wrong scales without a word. compressed-tensors has whole groups only.
constexpr Writer kWriters[] = {{"fp8_block", "e4m3", kFp8Block, kFp8Block, fp8_block, fp8_settings},
                               {"int4_g128", "int4", 1, kGroup, int4_groups, int4_settings}};

void write_configs(const CausalLM& model, const std::filesystem::path& to, OutJson settings) {
  OutJson config = model.config_json().raw();
  config.erase("torch_dtype");  // its name before transformers 5
  config["dtype"] = dtype_name(model.dtype());
  config["quantization_config"] = std::move(settings);
  write_file(to / "config.json", config.dump(2) + "\n");
  const auto generation = model.source() / "generation_config.json";
  if (std::filesystem::is_regular_file(generation)) write_file(to / generation.filename(), read_file(generation));
  copy_tokenizer_files(model.source(), to);
}

}  // namespace

Types write_folder(const Source& source, const std::string& format, const std::filesystem::path& to) {
  const auto* writer =
      std::find_if(std::begin(kWriters), std::end(kWriters), [&](const Writer& each) { return format == each.format; });
  TensorMap stored;
  Types types;
  std::vector<std::string> plain = {"lm_head"};
  size_t quantised = 0;
  for (const auto& [name, tensor] : source.tensors) {
    source.advance(name);
    const bool is_linear = source.linears.contains(name);
    const bool fits = is_linear && tensor.size(0) % writer->rows == 0 && tensor.size(1) % writer->columns == 0;
    types.emplace_back(fits ? writer->type : "");
    const std::string module = name.substr(0, name.rfind('.'));
    if (is_linear && !fits) plain.push_back(module);
    if (!fits) {
      stored.emplace_back(name, tensor);
      continue;
    }
    ++quantised;
    for (Part& part : writer->quantise(finite_floats(name, tensor), source.model.dtype())) {
      stored.emplace_back(cat(module, ".", part.end), std::move(part.tensor));
    }
  }
  if (quantised == 0) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("projections whose ", writer->rows > 1 ? "rows and columns are" : "columns are",
                               " multiples of ", writer->columns, ", for ", format),
                 .got = cat("none in ", source.model.source().string()),
                 .next = "take q8_0 or q4_k_m: their blocks fit rows of any multiple of 32"});
  }
  std::filesystem::create_directories(to);
  write_configs(source.model, to, writer->settings(plain));
  save_pretrained_weights(to, stored);
  return types;
}

}  // namespace hotswap::quantizing
