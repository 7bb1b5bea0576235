#include "hotswap/layers/gguf_dequant.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/layers/gguf_blocks.h"
#include "hotswap/layers/parallel.h"

namespace hotswap {
namespace {

namespace blocks = gguf_blocks;

// Every type that a file may hold: those of gguf 0.19.0 and of llama.cpp (2026), and of files from before 2025 the
// rearranged Q4_0 and IQ4_NL. The size is known also where the values are not, so that a file's layout can be checked.
// Q8_1 and Q8_K are made of activations and in no file.
constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4, blocks::f32},
    {1, "F16", 1, 2, blocks::f16},
    {2, "Q4_0", 32, 18, blocks::q4_0},
    {3, "Q4_1", 32, 20, blocks::q4_1},
    {6, "Q5_0", 32, 22, blocks::q5_0},
    {7, "Q5_1", 32, 24, blocks::q5_1},
    {8, "Q8_0", 32, 34, blocks::q8_0},
    {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84, blocks::q2_k},
    {11, "Q3_K", 256, 110, blocks::q3_k},
    {12, "Q4_K", 256, 144, blocks::q4_k},
    {13, "Q5_K", 256, 176, blocks::q5_k},
    {14, "Q6_K", 256, 210, blocks::q6_k},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18, blocks::iq4_nl},
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136, blocks::iq4_xs},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2, blocks::bf16},
    {31, "Q4_0_4_4", 32, 18},
    {32, "Q4_0_4_8", 32, 18},
    {33, "Q4_0_8_8", 32, 18},
    {34, "TQ1_0", 256, 54, blocks::tq1_0},
    {35, "TQ2_0", 256, 66, blocks::tq2_0},
    {36, "IQ4_NL_4_4", 32, 18},
    {37, "IQ4_NL_4_8", 32, 18},
    {38, "IQ4_NL_8_8", 32, 18},
    {39, "MXFP4", 32, 17, blocks::mxfp4},
    {40, "NVFP4", 64, 36, blocks::nvfp4},
    {41, "Q1_0", 128, 18},
    {42, "Q2_0", 64, 18},
};

constexpr int64_t kChunk = 256;  // weights decoded at once: whole blocks of every type
static_assert(std::all_of(std::begin(kTypes), std::end(kTypes),
                          [](const GgufType& type) { return kChunk % type.block == 0; }));

template <typename To>
void dequantise_to(const Dequantise& job) {
  To* to = static_cast<To*>(job.to);
  const auto chunk_bytes = static_cast<int64_t>(job.type.block_size) * (kChunk / job.type.block);
  parallel_for(0, (job.numel + kChunk - 1) / kChunk, 256, [&](int64_t first, int64_t last) {
    float weights[kChunk];
    for (int64_t c = first; c < last; ++c) {
      const int64_t count = std::min(kChunk, job.numel - c * kChunk);
      job.type.decode(job.from + c * chunk_bytes, weights, count);
      for (int64_t i = 0; i < count; ++i) to[c * kChunk + i] = static_cast<To>(weights[i]);
    }
  });
}

template <typename Fits>
const GgufType* find_type(Fits fits) {
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes), fits);
  return found == std::end(kTypes) ? nullptr : found;
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
  for (const GgufType& type : kTypes) {
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
                   .wanted = "float32, bfloat16 or float16 weights from a GGUF file",
                   .got = c10::toString(job.dtype),
                   .next = "choose one of them"});
  }
}

}  // namespace hotswap
