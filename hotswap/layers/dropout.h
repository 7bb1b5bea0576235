// Dropout of a block's branches and of embeddings, in training.
#pragma once

#include "hotswap/layers/adapter.h"

namespace hotswap {

// By a seed of the generator whose state dropout_draws() is: a checkpointed layer that runs again drops the same.
Tensor seeded_dropout(const Tensor& x, double p, bool training);
// The same of values in [from, to), in the shape, dtype and on the device of `like`.
Tensor seeded_uniform(const Tensor& like, double from, double to);

}  // namespace hotswap
