#include "hotswap/layers/short_conv.h"

#include <ATen/ops/mul.h>

namespace hotswap {

ShortConv::ShortConv(const ShortConvOptions& o)
    : options_(o),
      conv_(o.hidden_size, o.width, o.bias, /*is_special=*/false, /*activation=*/"none"),
      in_proj_(o.hidden_size, 3 * o.hidden_size, o.bias),
      out_proj_(o.hidden_size, o.hidden_size, o.bias) {
  own("conv", conv_);
  own("in_proj", in_proj_);
  own("out_proj", out_proj_);
}

Tensor ShortConv::forward(const Tensor& x, const ForwardContext& context) const {
  const int64_t dim = options_.hidden_size;
  const Tensor all = in_proj_.forward(x);  // [batch, time, 3 dim]
  const auto part = [&](int64_t index) { return all.narrow(2, index * dim, dim); };
  // After the projection, whose bias is not 0 where the input is: a padded row is as it is by itself.
  const Tensor gated = without_padding(at::mul(part(0), part(2)), context).transpose(1, 2);
  RecurrentStates states;
  if (context.memory != nullptr) {  // tokens only: nothing is summed up
    states = context.memory->states(options_.layer, gated, {x.size(0), dim, options_.width}, {x.size(0), 0});
  }
  return out_proj_.forward(at::mul(part(1), conv_.forward(gated, context, states.conv).transpose(1, 2)));
}

}  // namespace hotswap
