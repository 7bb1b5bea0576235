// For tests: a small Qwen3-MoE as a GGUF file, its experts in blocks of any codes.
#pragma once

#include <c10/util/Half.h>

#include <random>

#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/models/formats/test_gguf.h"

namespace hotswap::test_support {

struct GgufMixture {
  int64_t hidden = 256, inner = 256, experts = 4, layers = 2, vocab = 40;
  std::string gate = "Q4_K", up = "Q4_K", down = "Q6_K";  // of Q8_0, Q4_0, Q4_K, Q6_K, or another with any bytes
  std::string left_out = {};                              // a tensor that the file lacks
  int64_t wrong_rows = 0;                                 // rows of ffn_up_exps beyond those of ffn_gate_exps

  std::string bytes() const {
    Gguf file;
    const auto size = [](int64_t value) { return static_cast<uint32_t>(value); };
    file.str("general.architecture", "qwen3moe").u32("qwen3moe.block_count", size(layers));
    file.u32("qwen3moe.context_length", 64).u32("qwen3moe.embedding_length", size(hidden));
    file.u32("qwen3moe.feed_forward_length", size(inner)).u32("qwen3moe.expert_feed_forward_length", size(inner));
    file.u32("qwen3moe.expert_count", size(experts)).u32("qwen3moe.expert_used_count", 2);
    file.u32("qwen3moe.attention.head_count", 4).u32("qwen3moe.attention.head_count_kv", 2);
    file.u32("qwen3moe.attention.key_length", 64).u32("qwen3moe.attention.value_length", 64);
    file.u32("qwen3moe.vocab_size", size(vocab)).f32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-5F);
    put(file, "token_embd.weight", {vocab, hidden}, "Q8_0");
    put(file, "output.weight", {vocab, hidden}, "Q8_0");
    put(file, "output_norm.weight", {hidden}, "F32");
    for (int64_t i = 0; i < layers; ++i) {
      const std::string layer = cat("blk.", i, ".");
      for (const char* norm : {"attn_norm", "ffn_norm"}) put(file, layer + norm + ".weight", {hidden}, "F32");
      for (const char* norm : {"attn_q_norm", "attn_k_norm"}) put(file, layer + norm + ".weight", {64}, "F32");
      put(file, layer + "attn_q.weight", {256, hidden}, "Q8_0"),
          put(file, layer + "attn_k.weight", {128, hidden}, "Q8_0");
      put(file, layer + "attn_v.weight", {128, hidden}, "Q8_0");
      put(file, layer + "attn_output.weight", {hidden, 256}, "Q8_0");
      put(file, layer + "ffn_gate_inp.weight", {experts, hidden}, "F32");
      put(file, layer + "ffn_gate_exps.weight", {experts, inner, hidden}, gate);
      put(file, layer + "ffn_up_exps.weight", {experts, inner + wrong_rows, hidden}, up);
      put(file, layer + "ffn_down_exps.weight", {experts, hidden, inner}, down);
    }
    return file.bytes();
  }

 private:
  void put(Gguf& file, const std::string& name, const std::vector<int64_t>& shape, const std::string& type) const {
    if (name == left_out) return;
    const GgufType& of = *find_gguf_type(type);
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const std::vector<uint64_t> extents(shape.rbegin(), shape.rend());
    file.tensor(name, extents, of.id, type == "F32" ? floats_of(count, shape.size() == 1) : blocks(of, count));
  }
  static float uniform(float from, float to) {
    static std::mt19937 generator(7);
    return std::uniform_real_distribution<float>(from, to)(generator);
  }
  static std::string floats_of(int64_t count, bool norm) {
    std::string all;
    for (int64_t i = 0; i < count; ++i) all += little_endian(norm ? uniform(0.5F, 1.5F) : uniform(-0.5F, 0.5F));
    return all;
  }
  // Codes of any bits, scales that leave products of ordinary size.
  static std::string blocks(const GgufType& type, int64_t count) {
    const std::string name = type.name;
    const std::vector<size_t> halves = name == "Q6_K"   ? std::vector<size_t>{208}
                                       : name == "Q4_K" ? std::vector<size_t>{0, 2}
                                                        : std::vector<size_t>{0};
    const float scale = name == "Q8_0" ? 1e-3F : 1e-4F;
    std::string all(static_cast<size_t>(count / type.block) * type.block_size, 0);
    for (char& byte : all) byte = static_cast<char>(uniform(0, 255.9F));
    for (size_t block = 0; block < all.size(); block += type.block_size) {
      for (const size_t at : halves) all.replace(block + at, 2, little_endian(c10::Half(uniform(-scale, scale)).x));
    }
    return all;
  }
};

}  // namespace hotswap::test_support
