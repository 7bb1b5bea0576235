#include "hotswap/models/families/packed_heads.h"

#include <ATen/ops/cat.h>

#include "hotswap/base/error.h"

namespace hotswap {

TensorRule packed_heads(const std::string& from, const std::string& attention, const ModelConfig& c) {
  const int64_t groups = c.num_key_value_heads, queries = c.num_attention_heads / groups, dim = c.head_dim;
  const auto kinds_apart = [=](const at::Tensor& packed) {
    const int64_t rows = groups * (queries + 2) * dim;
    if (packed.dim() == 0 || packed.size(0) != rows) {
      throw Error({.kind = ErrorKind::kCorrupt,
                   .wanted = cat(rows, " rows of packed queries, keys and values in ", from),
                   .got = cat("[", join(packed.sizes()), "]"),
                   .next = "check that config.json is of the same model as the weights"});
    }
    const at::Tensor heads = packed.reshape({groups, queries + 2, dim, -1});
    const auto kind = [&](int64_t begin, int64_t count) {
      return heads.narrow(1, begin, count).reshape({groups * count * dim, -1});
    };
    const at::Tensor apart = at::cat({kind(0, queries), kind(queries, 1), kind(queries + 1, 1)});
    return apart.reshape(packed.sizes());
  };
  return TensorRule::split_rows(from, {attention + ".q_proj", attention + ".k_proj", attention + ".v_proj"},
                                kinds_apart);
}

}  // namespace hotswap
