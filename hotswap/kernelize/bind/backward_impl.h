// What every backward of a bound op asks before it runs. For sources of this room.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <vector>

#include "hotswap/base/error.h"
#include "hotswap/kernelize/contract/contract.h"

namespace hotswap::binding {

using at::Tensor;

inline void check_backward(const LayerOps& layer) {
  if (!layer.trains()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a gradient through ", layer.str()),
                 .got = "a kernel without backward",
                 .next = "kernelize in Mode TRAINING, which leaves this layer stock, or unkernelize"});
  }
  if (at::GradMode::is_enabled()) {
    throw Error({.kind = ErrorKind::kUnsupported,
                 .wanted = cat("a gradient of the gradient through ", layer.str()),
                 .got = "a kernel whose backward is not differentiable",
                 .next = "unkernelize for double backward (create_graph)"});
  }
}

// May a backward write its gradients over what its forward saved? Where only the graph and `saved`, all that the node
// keeps, refer to a tensor and its memory, and no second backward comes.
inline bool may_overwrite(const std::vector<Tensor>& saved) {
  if (torch::autograd::get_current_graph_task_keep_graph()) return false;
  return std::all_of(saved.begin(), saved.end(), [](const Tensor& t) {
    return t.is_contiguous() && t.use_count() <= 2 && t.storage().use_count() == 1;
  });
}

// Gradients of expanded scalars and of slices come with strides that kernels do not read.
inline Tensor dense(const Tensor& gradient) { return gradient.contiguous(); }
inline Tensor dense_rows(const Tensor& gradient) {
  return gradient.dim() > 0 && gradient.stride(-1) == 1 ? gradient : gradient.contiguous();
}

}  // namespace hotswap::binding
