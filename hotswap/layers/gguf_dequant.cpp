#include "hotswap/layers/gguf_dequant.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/layers/parallel.h"

namespace hotswap {
namespace {

template <typename To>
void dequantise_to(const Dequantise& job) {
  To* to = static_cast<To*>(job.to);
  const auto chunk_bytes = static_cast<int64_t>(job.type.block_size) * (kGgufChunk / job.type.block);
  parallel_for(0, (job.numel + kGgufChunk - 1) / kGgufChunk, 256, [&](int64_t first, int64_t last) {
    float weights[kGgufChunk];
    for (int64_t c = first; c < last; ++c) {
      const int64_t count = std::min(kGgufChunk, job.numel - c * kGgufChunk);
      job.type.decode(job.from + c * chunk_bytes, weights, count);
      for (int64_t i = 0; i < count; ++i) to[c * kGgufChunk + i] = static_cast<To>(weights[i]);
    }
  });
}

template <typename Fits>
const GgufType* find_type(Fits fits) {
  const std::span<const GgufType> types = gguf_types();
  const auto found = std::find_if(types.begin(), types.end(), fits);
  return found == types.end() ? nullptr : &*found;
}

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  return find_type([&](const GgufType& type) { return type.id == id; });
}

const GgufType* find_gguf_type(const std::string& name) {
  return find_type([&](const GgufType& type) { return type.name == name; });
}

bool can_dequantise(const GgufType& type) { return type.decode != nullptr; }

std::string dequantisable_types() {
  std::vector<std::string> names;
  for (const GgufType& type : gguf_types()) {
    if (can_dequantise(type)) names.emplace_back(type.name);
  }
  return join(names);
}

at::Tensor dequantised(const at::Tensor& blocks, const GgufType& type, int64_t in, at::ScalarType dtype) {
  const int64_t bytes_of_row = in / type.block * static_cast<int64_t>(type.block_size);
  if (blocks.dim() != 2 || blocks.scalar_type() != at::kByte || in % type.block != 0 ||
      blocks.size(1) != bytes_of_row) {
    throw Error(
        {.kind = ErrorKind::kCorrupt,
         .wanted = cat("rows of ", in, " weights in whole blocks of ", type.name, ", uint8 [rows, ", bytes_of_row, "]"),
         .got = cat(blocks.scalar_type(), " [", join(blocks.sizes()), "]"),
         .next = "check the type and the width of the weight"});
  }
  if (!blocks.is_cpu() && type.by_ops != nullptr) {
    const at::Tensor whole = blocks.contiguous().view({blocks.size(0), in / type.block, int64_t(type.block_size)});
    return type.by_ops(whole).reshape({blocks.size(0), in}).to(dtype);
  }
  const at::Tensor bytes = blocks.to(at::kCPU).contiguous();
  const at::ScalarType computed = dtype == at::kDouble ? at::kFloat : dtype;
  at::Tensor result = at::empty({blocks.size(0), in}, at::TensorOptions().dtype(computed));
  dequantise({.type = type,
              .from = bytes.const_data_ptr<uint8_t>(),
              .to = result.data_ptr(),
              .dtype = computed,
              .numel = result.numel()});
  return result.to(blocks.device(), dtype);
}

void dequantise(const Dequantise& job) {
  if (!can_dequantise(job.type)) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a GGUF tensor of a type among ", dequantisable_types()),
                 .got = cat("type ", job.type.name),
                 .next = "take a file of another quantisation (Q4_K_M, Q8_0), or the safetensors checkpoint"});
  }
  switch (job.dtype) {
    case at::kFloat:
      return dequantise_to<float>(job);
    case at::kBFloat16:
      return dequantise_to<c10::BFloat16>(job);
    case at::kHalf:
      return dequantise_to<c10::Half>(job);
    default:
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "a dtype of float32, bfloat16 or float16 to load a GGUF file in",
                   .got = c10::toString(job.dtype),
                   .next = "request one of these (--dtype)"});
  }
}

}  // namespace hotswap
