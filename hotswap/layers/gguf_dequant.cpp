#include "hotswap/layers/gguf_dequant.h"

#include <ATen/ops/empty.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstring>

#include "hotswap/base/error.h"
#include "hotswap/layers/parallel.h"

namespace hotswap {
namespace {

// Sizes of every type that a file may hold, so that its layout can be checked also where we cannot compute with it:
// those of gguf 0.19.0 (2026), and of files from before 2025 the rearranged Q4_0 and IQ4_NL, which have their blocks.
constexpr GgufType kTypes[] = {
    {0, "F32", 1, 4},           {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},        {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},        {7, "Q5_1", 32, 24},      {8, "Q8_0", 32, 34},        {9, "Q8_1", 32, 36},
    {10, "Q2_K", 256, 84},      {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},     {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},     {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},   {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},   {19, "IQ1_S", 256, 50},   {20, "IQ4_NL", 32, 18},     {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},     {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},           {25, "I16", 1, 2},
    {26, "I32", 1, 4},          {27, "I64", 1, 8},        {28, "F64", 1, 8},          {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2},         {31, "Q4_0_4_4", 32, 18}, {32, "Q4_0_4_8", 32, 18},   {33, "Q4_0_8_8", 32, 18},
    {34, "TQ1_0", 256, 54},     {35, "TQ2_0", 256, 66},   {36, "IQ4_NL_4_4", 32, 18}, {37, "IQ4_NL_4_8", 32, 18},
    {38, "IQ4_NL_8_8", 32, 18}, {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},      {41, "Q1_0", 128, 18},
};

constexpr int64_t kBlock = 32;

float half_at(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, 2);
  return static_cast<float>(c10::Half(bits, c10::Half::from_bits()));
}

// Each: one block of 32 weights to float32.
void block_f32(const uint8_t* from, float* to) { std::memcpy(to, from, kBlock * 4); }
void block_f16(const uint8_t* from, float* to) {
  for (int i = 0; i < kBlock; ++i) to[i] = half_at(from + 2 * i);
}
void block_bf16(const uint8_t* from, float* to) {
  for (int i = 0; i < kBlock; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    std::memcpy(to + i, &wide, 4);
  }
}
void block_q8_0(const uint8_t* from, float* to) {
  const float d = half_at(from);
  for (int i = 0; i < kBlock; ++i) to[i] = d * static_cast<float>(static_cast<int8_t>(from[2 + i]));
}
void block_q4_0(const uint8_t* from, float* to) {
  const float d = half_at(from);
  for (int i = 0; i < 16; ++i) {
    to[i] = d * static_cast<float>((from[2 + i] & 15) - 8);
    to[i + 16] = d * static_cast<float>((from[2 + i] >> 4) - 8);
  }
}
void block_q4_1(const uint8_t* from, float* to) {
  const float d = half_at(from), m = half_at(from + 2);
  for (int i = 0; i < 16; ++i) {
    to[i] = d * static_cast<float>(from[4 + i] & 15) + m;
    to[i + 16] = d * static_cast<float>(from[4 + i] >> 4) + m;
  }
}

struct Way {
  const char* type;
  void (*block)(const uint8_t*, float*);
};
constexpr Way kWays[] = {{"F32", block_f32},   {"F16", block_f16},   {"BF16", block_bf16},
                         {"Q8_0", block_q8_0}, {"Q4_0", block_q4_0}, {"Q4_1", block_q4_1}};

const Way* way_of(const GgufType& type) {
  for (const Way& way : kWays) {
    if (std::strcmp(way.type, type.name) == 0) return &way;
  }
  return nullptr;
}

template <typename To>
void dequantise_to(const Dequantise& job, const Way& way) {
  To* to = static_cast<To*>(job.to);
  const uint64_t bytes = job.type.block_size * (kBlock / job.type.block);  // of 32 weights
  const int64_t blocks = job.numel / kBlock, rest = job.numel % kBlock;
  parallel_for(0, blocks, 2048, [&](int64_t first, int64_t last) {
    float weights[kBlock];
    for (int64_t b = first; b < last; ++b) {
      way.block(job.from + b * bytes, weights);
      for (int i = 0; i < kBlock; ++i) to[b * kBlock + i] = static_cast<To>(weights[i]);
    }
  });
  if (rest == 0) return;
  // Only types without blocks end so: their last few weights, through a padded block.
  uint8_t last[kBlock * 4] = {};
  float weights[kBlock];
  std::memcpy(last, job.from + blocks * bytes, rest * job.type.block_size);
  way.block(last, weights);
  for (int64_t i = 0; i < rest; ++i) to[blocks * kBlock + i] = static_cast<To>(weights[i]);
}

}  // namespace

const GgufType* find_gguf_type(uint32_t id) {
  for (const GgufType& type : kTypes) {
    if (type.id == id) return &type;
  }
  return nullptr;
}

bool can_dequantise(const GgufType& type) { return way_of(type) != nullptr; }

std::string dequantisable_types() {
  std::vector<std::string> names;
  for (const Way& way : kWays) names.emplace_back(way.type);
  return join(names);
}

bool stays_packed(const GgufType& type) { return type.block == kBlock && can_dequantise(type); }

const GgufType& packed_type_of(const at::Tensor& packed, int64_t in) {
  for (const GgufType& type : kTypes) {
    if (stays_packed(type) && in % kBlock == 0 && packed.dim() == 2 && packed.scalar_type() == at::kByte &&
        packed.size(1) == in / kBlock * static_cast<int64_t>(type.block_size)) {
      return type;
    }
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("packed rows of ", in, " weights, in blocks of 32 of Q8_0, Q4_0 or Q4_1"),
               .got = cat("[", join(packed.sizes()), "] bytes"),
               .next = "check that the config and the weights belong together"});
}

at::Tensor dequantised(const at::Tensor& packed, int64_t in, at::ScalarType dtype) {
  const GgufType& type = packed_type_of(packed, in);
  const at::Tensor bytes = packed.to(at::kCPU).contiguous();
  const at::ScalarType computed = dtype == at::kDouble ? at::kFloat : dtype;
  at::Tensor result = at::empty({packed.size(0), in}, at::TensorOptions().dtype(computed));
  dequantise({.type = type,
              .from = bytes.const_data_ptr<uint8_t>(),
              .to = result.data_ptr(),
              .dtype = computed,
              .numel = result.numel()});
  return result.to(packed.device(), dtype);
}

void dequantise(const Dequantise& job) {
  const Way* way = way_of(job.type);
  if (way == nullptr) {
    throw Error(
        {.kind = ErrorKind::kUnsupported,
         .wanted = cat("a GGUF tensor of a type among ", dequantisable_types()),
         .got = cat("type ", job.type.name),
         .next = "convert the file to Q8_0, Q4_0 or Q4_1 (llama-quantize), or take the safetensors checkpoint"});
  }
  switch (job.dtype) {
    case at::kFloat:
      return dequantise_to<float>(job, *way);
    case at::kBFloat16:
      return dequantise_to<c10::BFloat16>(job, *way);
    case at::kHalf:
      return dequantise_to<c10::Half>(job, *way);
    default:
      throw Error({.kind = ErrorKind::kInvalidArgument,
                   .wanted = "float32, bfloat16 or float16 weights from a GGUF file",
                   .got = c10::toString(job.dtype),
                   .next = "choose one of them"});
  }
}

}  // namespace hotswap
