// Mamba-2: heads of a recurrence with one decay each, which B and C of a group share.
#include <limits>

#include "hotswap/base/error.h"
#include "hotswap/layers/mamba2_mixer.h"
#include "hotswap/models/config_numbers.h"
#include "hotswap/models/families/mamba.h"
#include "hotswap/models/family.h"

namespace hotswap::mamba2 {
namespace {

// Python's infinity, which JSON has not, is written {"__float__": "Infinity"}.
double limit(const Json& json) {
  if (json.is_number()) return json.as<double>();
  if (json.is_object() && json.get<std::string>("__float__", "") == "Infinity") {
    return std::numeric_limits<double>::infinity();
  }
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = "time_step_limit of two values, the second one perhaps infinite",
               .got = json.where(),
               .next = "write it as [0.0, Infinity], the default, or as two finite values"});
}

void read_time_step_limit(MambaOptions& m, const Json& json) {
  m.dt_max = std::numeric_limits<double>::infinity();
  if (!json.has("time_step_limit")) return;
  const std::vector<Json> limits = json.child("time_step_limit").elements();
  if (limits.size() != 2) limit(json.child("time_step_limit"));  // which is an Error
  m.dt_min = limit(limits[0]);
  m.dt_max = limit(limits[1]);
}

ModelConfig read_config(const Json& json) {
  ModelConfig c = read_mamba_config(json, /*tie_word_embeddings=*/false);
  MambaOptions& m = c.mamba;
  m.state = positive(json, "state_size", 128);
  m.heads = positive(json, "num_heads", 128);
  m.head_dim = positive(json, "head_dim", 64);
  m.groups = positive(json, "n_groups", 8);
  m.chunk_size = positive(json, "chunk_size", 256);
  m.channels = positive(json, "expand", 2) * c.hidden_size;
  m.gated_norm_eps = c.rms_norm_eps;
  read_time_step_limit(m, json);
  if (m.heads * m.head_dim == m.channels && m.heads % m.groups == 0) return c;
  throw Error({.kind = ErrorKind::kCorrupt,
               .wanted = cat("num_heads of head_dim that make ", m.channels, " channels together, in n_groups"),
               .got = cat(m.heads, " of ", m.head_dim, " in ", m.groups, " in ", json.where()),
               .next = "set num_heads to expand * hidden_size / head_dim, a multiple of n_groups"});
}

std::unique_ptr<Block> make_block(const ModelConfig& c, int64_t layer) {
  return std::make_unique<MambaBlock>(c, std::make_unique<Mamba2Mixer>(mamba_options(c, layer)));
}

}  // namespace

const RegisteredFamily kMamba2({.model_type = "mamba2",
                                .class_name = "Mamba2ForCausalLM",
                                .read_config = read_config,
                                .make_block = make_block,
                                .tensor_rules = backbone_names,
                                .own_parameter_order = true,
                                .module_names = backbone_names});

}  // namespace hotswap::mamba2
