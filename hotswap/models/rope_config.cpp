#include "hotswap/models/rope_config.h"

#include <algorithm>

#include "hotswap/base/error.h"
#include "hotswap/models/config_numbers.h"

namespace hotswap {
namespace {

// Where the rotary parameters stand: "rope_parameters" since transformers 5, "rope_scaling" before, or nowhere.
std::optional<Json> find_rope(const Json& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    auto found = config.find(key);
    if (!found) continue;
    if (!found->is_object()) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat("an object at ", found->where()),
                   .got = "something else",
                   .next = cat("write ", found->where(), " as an object, such as {\"rope_type\": \"default\"}")});
    }
    if (!found->items().empty()) return found;
  }
  return std::nullopt;
}

void read_factors(RopeParameters& rope, const Json& given) {
  rope.short_factor = given.at<std::vector<double>>("short_factor");
  rope.long_factor = given.at<std::vector<double>>("long_factor");
  const auto half = static_cast<size_t>(rope.dim / 2);
  if (rope.short_factor.size() == half && rope.long_factor.size() == half) return;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat(half, " values in short_factor and in long_factor"),
               .got = cat(rope.short_factor.size(), " and ", rope.long_factor.size(), " in ", given.where()),
               .next = "both lists have a factor for each pair: half of head_dim's rotated part"});
}

void read_scaling(RopeParameters& rope, const Json& config, const Json& given, const RopeDefaults& defaults) {
  const bool has_type = given.has("rope_type");
  rope.type = given.get<std::string>(has_type ? "rope_type" : "type", "default");
  if (rope.type == "su") rope.type = "longrope";  // its first name
  if (std::find(rope_types().begin(), rope_types().end(), rope.type) == rope_types().end()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a rope type that is implemented: ", join(rope_types())),
                 .got = cat('"', rope.type, "\" in ", given.where()),
                 .next = "add it to hotswap/layers/rope.cpp"});
  }
  if (rope.type == "default") return;
  const auto outer = config.get<int64_t>("original_max_position_embeddings", defaults.original_max_position_embeddings);
  rope.original_max_position_embeddings =
      outer != 0 ? outer : positive(given, "original_max_position_embeddings", rope.max_position_embeddings);
  const double ratio =
      static_cast<double>(rope.max_position_embeddings) / static_cast<double>(rope.original_max_position_embeddings);
  const bool may_lack_factor = rope.type == "longrope" || (rope.type == "yarn" && given.raw().contains("factor"));
  rope.factor = may_lack_factor ? positive_number(given, "factor", ratio) : positive_number(given, "factor");
  if (rope.type == "llama3") {
    rope.low_freq_factor = positive_number(given, "low_freq_factor");
    rope.high_freq_factor = positive_number(given, "high_freq_factor");
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = "high_freq_factor above low_freq_factor",
                   .got = cat(rope.high_freq_factor, " and ", rope.low_freq_factor, " in ", given.where()),
                   .next = "set high_freq_factor above low_freq_factor: 4 and 1 in Llama 3.1"});
    }
  }
  if (given.has("attention_factor")) rope.attention_factor = positive_number(given, "attention_factor");
  rope.beta_fast = positive_number(given, "beta_fast", 32);
  rope.beta_slow = positive_number(given, "beta_slow", 1);
  rope.mscale = given.get<double>("mscale", 0);
  rope.mscale_all_dim = given.get<double>("mscale_all_dim", 0);
  rope.truncate = flag(given, "truncate", true);
  if (rope.type == "longrope") read_factors(rope, given);
}

// How much of a head turns.
int64_t rotary_dim(const Json& config, const std::optional<Json>& given, int64_t head_dim,
                   const RopeDefaults& defaults) {
  const bool may_be_partial = defaults.may_be_partial;
  const double outer = config.get<double>("partial_rotary_factor", defaults.partial);
  const double factor = given ? given->get<double>("partial_rotary_factor", outer) : outer;
  const auto dim = static_cast<int64_t>(static_cast<double>(head_dim) * factor);
  if (factor == 1.0) return head_dim;
  if (may_be_partial && factor > 0 && factor < 1 && dim >= 2 && dim % 2 == 0) return dim;
  throw Error({.kind = may_be_partial ? ErrorKind::kCorrupt : ErrorKind::kUnsupported,
               .wanted = may_be_partial ? cat("a partial_rotary_factor that makes an even part of heads of ", head_dim)
                                        : "rotary embeddings on the whole head",
               .got = cat("partial_rotary_factor ", factor, " in ", config.where()),
               .next = may_be_partial ? "set partial_rotary_factor so that head_dim times it is even"
                                      : "take another checkpoint: this is not implemented"});
}

RopeParameters read_rope(const Json& config, const std::optional<Json>& given, int64_t head_dim,
                         const RopeDefaults& defaults) {
  RopeParameters rope{.dim = rotary_dim(config, given, head_dim, defaults)};
  rope.max_position_embeddings = positive(config, "max_position_embeddings");
  const double outer_theta = positive_number(config, "rope_theta", defaults.theta);
  rope.theta = given ? positive_number(*given, "rope_theta", outer_theta) : outer_theta;
  if (given) read_scaling(rope, config, *given, defaults);
  return rope;
}

}  // namespace

ConfiguredRopes read_ropes(const Json& config, int64_t head_dim, const RopeDefaults& defaults) {
  const auto given = find_rope(config);
  const bool by_type = given && (given->has("full_attention") || given->has("sliding_attention"));
  if (!defaults.sliding_theta) {
    if (!by_type) return {read_rope(config, given, head_dim, defaults), std::nullopt};
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = "one set of rotary parameters for all layers",
                 .got = cat("one for each type of layer at ", given->where()),
                 .next = "take another checkpoint: this is not implemented"});
  }
  const auto of_type = [&](const char* type) { return by_type ? given->find(type) : std::nullopt; };
  RopeParameters sliding = read_rope(config, of_type("sliding_attention"), head_dim, defaults);
  if (const auto own = of_type("sliding_attention"); !own || !own->has("rope_theta")) {
    sliding.theta = positive_number(config, "rope_local_base_freq", *defaults.sliding_theta);
  }
  return {read_rope(config, by_type ? of_type("full_attention") : given, head_dim, defaults), std::move(sliding)};
}

}  // namespace hotswap
