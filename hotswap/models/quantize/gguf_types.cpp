// Which type each tensor of a GGUF file has, by format: the choices of llama.cpp's quantisation (llama-quant.cpp).
#include <charconv>

#include "hotswap/base/error.h"
#include "hotswap/layers/gguf_dequant.h"
#include "hotswap/models/quantize/quantize_impl.h"

namespace hotswap::quantizing {
namespace {

// Of blk.N.
int64_t layer_in(const std::string& tensor) {
  int64_t layer = 0;
  if (tensor.starts_with("blk.")) std::from_chars(tensor.data() + 4, tensor.data() + tensor.size(), layer);
  return layer;
}

// The first and the last eighth, and every third between them: whose errors cost a text the highest loss.
bool gets_more_bits(int64_t layer, int64_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

std::string q4_k_m(const std::string& tensor, const MixFacts& facts) {
  const bool is_head = tensor == "output.weight" || (tensor == "token_embd.weight" && !facts.has_head);
  if (is_head) return "Q6_K";
  const bool more = gets_more_bits(layer_in(tensor), facts.layers);
  if (tensor.ends_with(".attn_v.weight")) return more ? "Q6_K" : facts.shares_values_of_8 ? "Q5_K" : "Q4_K";
  if (tensor.ends_with(".ffn_down.weight")) return more ? "Q6_K" : "Q4_K";
  return "Q4_K";
}

// For rows that are no whole blocks of it: blocks of 32 with as many bits or the next more, and then none.
std::string fitting(std::string type, int64_t columns) {
  constexpr std::pair<const char*, const char*> kNarrower[] = {{"Q4_K", "Q5_0"}, {"Q5_K", "Q5_1"}, {"Q6_K", "Q8_0"}};
  const auto fits = [&] { return columns % find_gguf_type(type)->block == 0; };
  for (const auto& [wide, narrow] : kNarrower) {
    if (type == wide && !fits()) {
      type = narrow;
      break;
    }
  }
  return fits() ? type : "F16";
}

}  // namespace

std::string gguf_type_of(const std::string& format, const std::string& tensor, const std::vector<int64_t>& shape,
                         const MixFacts& facts) {
  if (shape.size() < 2) return "F32";
  if (format == "q8_0") return fitting("Q8_0", shape.back());
  return fitting(q4_k_m(tensor, facts), shape.back());
}

}  // namespace hotswap::quantizing
