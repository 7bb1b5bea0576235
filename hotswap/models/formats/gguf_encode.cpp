#include "hotswap/models/formats/gguf_encode.h"

#include <c10/util/Half.h>

#include <array>
#include <cstring>

#include "hotswap/base/error.h"
#include "hotswap/layers/parallel.h"
#include "hotswap/models/formats/scale_search.h"

namespace hotswap {
namespace {

constexpr float kLeastHalf = 0x1p-24F;  // the least that is not 0

float as_half(float x) { return c10::Half(x); }

// The next above x that a half can be, or x: a scale that covers the outermost weight with its outermost code.
float half_at_least(float x) {
  c10::Half half(x);
  if (static_cast<float>(half) < x) half = c10::Half(static_cast<uint16_t>(half.x + 1), c10::Half::from_bits());
  return half;
}

void put_half(uint8_t* to, float x) {
  const uint16_t bits = c10::Half(x).x;
  std::memcpy(to, &bits, sizeof bits);
}

// The code of each weight: to 0 .. high, of w = scale * code + offset.
template <int kCount>
float error_with_offset(const float* x, float scale, float offset, float high) {
  const float inverse = inverse_of(scale);
  float sum = 0;
  for (int i = 0; i < kCount; ++i) {
    const float off = x[i] - (scale * code_of((x[i] - offset) * inverse, 0, high) + offset);
    sum += off * off;
  }
  return sum;
}

template <int kCount>
void codes_with_offset(const float* x, float scale, float offset, float high, int* codes) {
  const float inverse = inverse_of(scale);
  for (int i = 0; i < kCount; ++i) codes[i] = static_cast<int>(code_of((x[i] - offset) * inverse, 0, high));
}

void f32(const float* x, uint8_t* p) { std::memcpy(p, x, sizeof *x); }
void f16(const float* x, uint8_t* p) { put_half(p, *x); }

// 32: half d, 32 int8 from -127 on, as every reader's products expect: d q
void q8_0(const float* x, uint8_t* p) {
  float extreme = 0;
  for (int i = 0; i < 32; ++i) extreme = std::max(extreme, std::abs(x[i]));
  float d = as_half(extreme / 127);
  if (d < 0x1p-14F && extreme > 0) {  // a half of few digits, or 0
    const float above = d == 0 ? kLeastHalf : half_at_least(std::nextafter(d, 1.F));
    if (squared_error<32>(x, above, -127, 127) < squared_error<32>(x, d, -127, 127)) d = above;
  }
  const float inverse = inverse_of(d);
  put_half(p, d);
  for (int i = 0; i < 32; ++i) p[2 + i] = static_cast<uint8_t>(static_cast<int>(code_of(x[i] * inverse, -127, 127)));
}

// Codes of five bits, as Q5_0 and Q5_1 pack them: the fifth bits of all, then pairs of the others.
void put_five_bits(uint8_t* p, const int* codes) {
  uint32_t fifths = 0;
  for (int i = 0; i < 32; ++i) fifths |= static_cast<uint32_t>(codes[i] >> 4) << i;
  std::memcpy(p, &fifths, sizeof fifths);
  for (int i = 0; i < 16; ++i) p[4 + i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
}

// 32: half d, 32 fifth bits, 16 bytes: d (q - 16)
void q5_0(const float* x, uint8_t* p) {
  const float d = best_scale<32>(x, -16, as_half), inverse = inverse_of(d);
  int codes[32];
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<int>(code_of(x[i] * inverse, -16, 15)) + 16;
  put_half(p, d);
  put_five_bits(p + 2, codes);
}

struct ScaleAndOffset {
  float scale = 0, offset = 0;  // w = scale * code + offset
};

// Scale and offset of the least squared error among those that are tried, in float32. `max_offset` is the greatest
// offset that the format can keep: 0 where it subtracts a minimum of at least 0.
template <int kCount>
ScaleAndOffset fitted(const float* x, int max_code, float max_offset) {
  const auto high = static_cast<float>(max_code);
  float least = x[0], highest = x[0];
  for (int i = 1; i < kCount; ++i) least = std::min(least, x[i]), highest = std::max(highest, x[i]);
  const float offset = std::min(least, max_offset);
  // All of one value that the offset can be: it is the offset, and no code adds to it.
  if (highest <= offset) return {0, offset};
  ScaleAndOffset best{(highest - offset) / high, offset};
  float best_error = error_with_offset<kCount>(x, best.scale, best.offset, high);
  for (int step = -2; step <= 8; ++step) {
    const float scale = best_error == 0 ? 0 : (highest - offset) / (high + .125F * static_cast<float>(step));
    if (scale == 0) break;
    const float inverse = inverse_of(scale);
    float codes = 0, squares = 0, weights = 0, products = 0;
    for (int i = 0; i < kCount; ++i) {
      const float code = code_of((x[i] - offset) * inverse, 0, high);
      codes += code, squares += code * code, weights += x[i], products += x[i] * code;
    }
    const float count = kCount, determinant = count * squares - codes * codes;
    if (!(determinant > 0) || squares == 0) continue;
    ScaleAndOffset tried{(count * products - weights * codes) / determinant,
                         (squares * weights - codes * products) / determinant};
    if (tried.offset > max_offset) tried = {products / squares, max_offset};
    if (!(tried.scale > 0)) continue;
    const float error = error_with_offset<kCount>(x, tried.scale, tried.offset, high);
    if (error < best_error) best = tried, best_error = error;
  }
  return best;
}

// 32: half d, half m, 32 fifth bits, 16 bytes: d q + m
void q5_1(const float* x, uint8_t* p) {
  float least = x[0], highest = x[0];
  for (int i = 1; i < 32; ++i) least = std::min(least, x[i]), highest = std::max(highest, x[i]);
  ScaleAndOffset best{as_half((highest - least) / 31), as_half(least)};
  float best_error = error_with_offset<32>(x, best.scale, best.offset, 31);
  const ScaleAndOffset free = fitted<32>(x, 31, INFINITY);
  for (const float scale : {free.scale, best.scale}) {
    for (const float offset : {free.offset, best.offset}) {
      for (const float stored : {as_half(scale), half_at_least(scale)}) {
        const ScaleAndOffset tried{stored, as_half(offset)};
        const float error = error_with_offset<32>(x, tried.scale, tried.offset, 31);
        if (error < best_error) best = tried, best_error = error;
      }
    }
  }
  int codes[32];
  codes_with_offset<32>(x, best.scale, best.offset, 31, codes);
  put_half(p, best.scale);
  put_half(p + 2, best.offset);
  put_five_bits(p + 4, codes);
}

// What q4_k and q5_k share: eight sub-blocks of 32 with a scale s and a minimum m of six bits each, (d s) q - (dmin m).
struct SubBlocks {
  std::array<int, 8> scales = {}, minima = {};
  float d = 0, dmin = 0;
  int codes[256] = {};
};

SubBlocks sub_blocks(const float* x, int max_code) {
  constexpr int kMax = 63;
  const auto high = static_cast<float>(max_code);
  SubBlocks block;
  std::array<ScaleAndOffset, 8> fits;
  float max_scale = 0, max_minimum = 0;
  for (int j = 0; j < 8; ++j) {
    fits[j] = fitted<32>(x + 32 * j, max_code, 0);
    max_scale = std::max(max_scale, fits[j].scale), max_minimum = std::max(max_minimum, -fits[j].offset);
  }
  block.d = half_at_least(max_scale / kMax), block.dmin = half_at_least(max_minimum / kMax);
  const auto nearest = [](float x, float unit) { return static_cast<int>(code_of(x * inverse_of(unit), 0, kMax)); };
  for (int j = 0; j < 8; ++j) {
    const float* w = x + 32 * j;
    const int scale = nearest(fits[j].scale, block.d), minimum = nearest(-fits[j].offset, block.dmin);
    float best_error = INFINITY;
    for (int s = std::max(scale - 1, 0); s <= std::min(scale + 1, kMax); ++s) {
      for (int m = std::max(minimum - 1, 0); m <= std::min(minimum + 1, kMax); ++m) {
        const float error =
            error_with_offset<32>(w, block.d * static_cast<float>(s), -block.dmin * static_cast<float>(m), high);
        if (error < best_error) best_error = error, block.scales[j] = s, block.minima[j] = m;
      }
    }
    codes_with_offset<32>(w, block.d * static_cast<float>(block.scales[j]),
                          -block.dmin * static_cast<float>(block.minima[j]), high, block.codes + 32 * j);
  }
  return block;
}

void put_scales(uint8_t* p, const SubBlocks& block) {  // d, dmin and 12 bytes
  put_half(p, block.d);
  put_half(p + 2, block.dmin);
  uint8_t* packed = p + 4;
  for (int j = 0; j < 4; ++j) {
    packed[j] = static_cast<uint8_t>(block.scales[j] | block.scales[j + 4] >> 4 << 6);
    packed[j + 4] = static_cast<uint8_t>(block.minima[j] | block.minima[j + 4] >> 4 << 6);
    packed[j + 8] = static_cast<uint8_t>((block.scales[j + 4] & 15) | (block.minima[j + 4] & 15) << 4);
  }
}

// Four low bits a code: of sub-blocks 2 k and 2 k + 1 in the halves of 32 bytes.
void put_low_bits(uint8_t* p, const int* codes) {
  for (int k = 0; k < 4; ++k) {
    for (int i = 0; i < 32; ++i) {
      p[32 * k + i] = static_cast<uint8_t>((codes[64 * k + i] & 15) | (codes[64 * k + 32 + i] & 15) << 4);
    }
  }
}

void q4_k(const float* x, uint8_t* p) {
  const SubBlocks block = sub_blocks(x, 15);
  put_scales(p, block);
  put_low_bits(p + 16, block.codes);
}

void q5_k(const float* x, uint8_t* p) {
  const SubBlocks block = sub_blocks(x, 31);
  put_scales(p, block);
  for (int i = 0; i < 32; ++i) {
    int fifths = 0;
    for (int j = 0; j < 8; ++j) fifths |= block.codes[32 * j + i] >> 4 << j;
    p[16 + i] = static_cast<uint8_t>(fifths);
  }
  put_low_bits(p + 48, block.codes);
}

// 16 sub-blocks of 16 with a scale of int8 each: (d s) (q - 32)
void q6_k(const float* x, uint8_t* p) {
  constexpr int kMax = 127;
  std::array<float, 16> fits;
  float highest = 0;
  for (int j = 0; j < 16; ++j) {
    fits[j] = best_scale<16>(x + 16 * j, -32, [](float scale) { return scale; });
    highest = std::max(highest, std::abs(fits[j]));
  }
  const float d = half_at_least(highest / kMax);
  uint8_t *lows = p, *highs = p + 128, *scales = p + 192;
  std::memset(p, 0, 192);
  put_half(p + 208, d);
  for (int j = 0; j < 16; ++j) {
    const float* w = x + 16 * j;
    const int nearest = static_cast<int>(code_of(fits[j] * inverse_of(d), -kMax, kMax));
    int best = nearest;
    float best_error = INFINITY;
    for (int s = std::max(nearest - 1, -kMax); s <= std::min(nearest + 1, kMax); ++s) {
      const float error = squared_error<16>(w, d * static_cast<float>(s), -32, 31);
      if (error < best_error) best_error = error, best = s;
    }
    scales[j] = static_cast<uint8_t>(best);
    const float inverse = inverse_of(d * static_cast<float>(best));
    for (int k = 0; k < 16; ++k) {
      const int i = 16 * j + k, n = i / 128, r = i % 128;
      const int code = static_cast<int>(code_of(w[k] * inverse, -32, 31)) + 32;
      lows[64 * n + r % 64] |= static_cast<uint8_t>((code & 15) << r / 64 * 4);
      highs[32 * n + r % 32] |= static_cast<uint8_t>(code >> 4 << r / 32 * 2);
    }
  }
}

struct Encoder {
  const char* type;
  void (*block)(const float* from, uint8_t* to);
};
constexpr Encoder kEncoders[] = {{"F32", f32},   {"F16", f16},   {"Q8_0", q8_0}, {"Q5_0", q5_0},
                                 {"Q5_1", q5_1}, {"Q4_K", q4_k}, {"Q5_K", q5_k}, {"Q6_K", q6_k}};

const Encoder* find_encoder(const GgufType& type) {
  const auto* found = std::find_if(std::begin(kEncoders), std::end(kEncoders),
                                   [&](const Encoder& encoder) { return std::strcmp(encoder.type, type.name) == 0; });
  return found == std::end(kEncoders) ? nullptr : found;
}

}  // namespace

bool can_encode(const GgufType& type) { return find_encoder(type) != nullptr; }

void encode(const EncodeGguf& job) {
  const Encoder* encoder = find_encoder(job.type);
  if (encoder == nullptr || job.numel % job.type.block != 0) {
    std::vector<std::string> known;
    for (const Encoder& each : kEncoders) known.emplace_back(each.type);
    throw Error({.kind = ErrorKind::kInvalidArgument,
                 .wanted = cat("whole blocks of a type that is written here: ", join(known)),
                 .got = cat(job.numel, " weights as ", job.type.name),
                 .next = "take another type"});
  }
  const int64_t block = job.type.block, grain = std::max<int64_t>(1, 4096 / block);
  parallel_for(0, job.numel / block, grain, [&](int64_t first, int64_t last) {
    for (int64_t b = first; b < last; ++b) {
      encoder->block(job.from + b * block, job.to + b * static_cast<int64_t>(job.type.block_size));
    }
  });
}

}  // namespace hotswap
