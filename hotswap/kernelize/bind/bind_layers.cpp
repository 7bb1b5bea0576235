// Norms, activations, gates, rotary embedding, linear: their ops in a slot, with autograd.
#include "hotswap/kernelize/bind/bind_impl.h"

namespace hotswap {
namespace {

using namespace binding;  // NOLINT(google-build-using-namespace)
using torch::autograd::Function;
using Two = std::tuple<Tensor, Tensor>;
using Three = std::tuple<Tensor, Tensor, Tensor>;

// rms_norm/1

using RmsNormOps = Ops<Tensor(const Tensor&, const Tensor&, double, double, String),
                       Two(const Tensor&, const Tensor&, double, double, String),
                       Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, String)>;

template <typename OpsType>
struct NormCall {
  const OpsType* ops;
  double offset;
  std::string casting;
};

struct RmsNormFunction : Function<RmsNormFunction> {
  static Tensor forward(AutogradContext* ctx, const RmsNormOps* ops, const Tensor& x, const Tensor& weight, double eps,
                        double offset, const std::string& casting) {
    keep(ctx, NormCall<RmsNormOps>{ops, offset, casting});
    if (!ops->trains()) return below_autograd(ops->forward, x, weight, eps, offset, casting);
    auto [y, rstd] = below_autograd(*ops->train, x, weight, eps, offset, casting);
    ctx->save_for_backward({x, weight, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    const auto call = kept<NormCall<RmsNormOps>>(ctx);
    check_backward(call.ops->layer);
    const auto saved = ctx->get_saved_variables();  // x, weight, rstd
    auto [dx, dweight] =
        below_autograd(*call.ops->backward, dense(dy[0]), saved[0], saved[1], saved[2], call.offset, call.casting);
    return {{}, dx, dweight, {}, {}, {}};
  }
};

// add_rms_norm/1

using AddRmsNormOps =
    Ops<Two(const Tensor&, const Tensor&, const Tensor&, double, double, String),
        Three(const Tensor&, const Tensor&, const Tensor&, double, double, String),
        Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, double, String)>;

struct AddRmsNormFunction : Function<AddRmsNormFunction> {
  static variable_list forward(AutogradContext* ctx, const AddRmsNormOps* ops, const Tensor& x, const Tensor& residual,
                               const Tensor& weight, double eps, double offset, const std::string& casting) {
    keep(ctx, NormCall<AddRmsNormOps>{ops, offset, casting});
    if (!ops->trains()) {
      auto [y, h] = below_autograd(ops->forward, x, residual, weight, eps, offset, casting);
      return {y, h};
    }
    auto [y, h, rstd] = below_autograd(*ops->train, x, residual, weight, eps, offset, casting);
    ctx->save_for_backward({h, weight, rstd});
    return {y, h};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {  // dy, dh; zeros where unused
    const auto call = kept<NormCall<AddRmsNormOps>>(ctx);
    check_backward(call.ops->layer);
    const auto saved = ctx->get_saved_variables();  // h, weight, rstd
    auto [dx, dweight] = below_autograd(*call.ops->backward, dense(grads[0]), dense(grads[1]), saved[0], saved[1],
                                        saved[2], call.offset, call.casting);
    return {{}, dx, dx, dweight, {}, {}, {}};
  }
};

// layer_norm/1

using LayerNormOps = Ops<Tensor(const Tensor&, const Tensor&, const OptTensor&, double),
                         Three(const Tensor&, const Tensor&, const OptTensor&, double),
                         Three(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&)>;

struct LayerNormFunction : Function<LayerNormFunction> {
  static Tensor forward(AutogradContext* ctx, const LayerNormOps* ops, const Tensor& x, const Tensor& weight,
                        const OptTensor& bias, double eps) {
    keep(ctx, std::pair(ops, bias.has_value()));
    if (!ops->trains()) return below_autograd(ops->forward, x, weight, bias, eps);
    auto [y, mean, rstd] = below_autograd(*ops->train, x, weight, bias, eps);
    ctx->save_for_backward({x, weight, mean, rstd});
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    const auto [ops, has_bias] = kept<std::pair<const LayerNormOps*, bool>>(ctx);
    check_backward(ops->layer);
    const auto saved = ctx->get_saved_variables();  // x, weight, mean, rstd
    auto [dx, dweight, dbias] = below_autograd(*ops->backward, dense(dy[0]), saved[0], saved[1], saved[2], saved[3]);
    return {{}, dx, dweight, has_bias ? dbias : Tensor(), {}};
  }
};

// activation/1 and act_and_mul/1

using ActivationOps = Ops<Tensor(const Tensor&), Tensor(const Tensor&), Tensor(const Tensor&, const Tensor&)>;

struct ActivationFunction : Function<ActivationFunction> {
  static Tensor forward(AutogradContext* ctx, const ActivationOps* ops, const Tensor& x) {
    keep(ctx, ops);
    if (!ops->trains()) return below_autograd(ops->forward, x);
    ctx->save_for_backward({x});
    return below_autograd(*ops->train, x);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    const auto* ops = kept<const ActivationOps*>(ctx);
    check_backward(ops->layer);
    return {{}, below_autograd(*ops->backward, dense(dy[0]), ctx->get_saved_variables()[0])};
  }
};

// gated_mlp/1

struct GatedOps : Ops<Tensor(const Tensor&, const Tensor&), Tensor(const Tensor&, const Tensor&),
                      Two(const Tensor&, const Tensor&, const Tensor&)> {
  using BackwardInplace = void(const Tensor&, const Tensor&, const Tensor&);
  explicit GatedOps(const PackageLayer& layer)
      : Ops(layer), backward_inplace(typed_op<BackwardInplace>(layer, "backward_inplace")) {}
  std::optional<c10::TypedOperatorHandle<BackwardInplace>> backward_inplace;
};

struct GatedFunction : Function<GatedFunction> {
  static Tensor forward(AutogradContext* ctx, const GatedOps* ops, const Tensor& gate, const Tensor& up) {
    keep(ctx, ops);
    if (!ops->trains()) return below_autograd(ops->forward, gate, up);
    ctx->save_for_backward({gate, up});
    return below_autograd(*ops->train, gate, up);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    const auto* ops = kept<const GatedOps*>(ctx);
    check_backward(ops->layer);
    const auto saved = ctx->get_saved_variables();  // gate, up
    if (ops->backward_inplace && may_overwrite(saved)) {
      const Tensor dgate = saved[0].detach(), dup = saved[1].detach();
      below_autograd(*ops->backward_inplace, dense(dy[0]), dgate, dup);
      return {{}, dgate, dup};
    }
    auto [dgate, dup] = below_autograd(*ops->backward, dense(dy[0]), saved[0], saved[1]);
    return {{}, dgate, dup};
  }
};

// rotary/1: q and k in and out, dq and dk alike

using RotarySignature = Two(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, bool);
using RotaryOps = Ops<RotarySignature, RotarySignature, RotarySignature>;

struct RotaryCall {
  const RotaryOps* ops;
  int64_t dim;
  bool interleaved;
};

struct RotaryFunction : Function<RotaryFunction> {
  static variable_list forward(AutogradContext* ctx, const RotaryOps* ops, const Tensor& q, const Tensor& k,
                               const Tensor& cos, const Tensor& sin, int64_t dim, bool interleaved) {
    keep(ctx, RotaryCall{ops, dim, interleaved});
    ctx->save_for_backward({cos, sin});
    auto [q_out, k_out] = below_autograd(ops->trains() ? *ops->train : ops->forward, q, k, cos, sin, dim, interleaved);
    return {q_out, k_out};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto call = kept<RotaryCall>(ctx);
    check_backward(call.ops->layer);
    const auto saved = ctx->get_saved_variables();  // cos, sin
    auto [dq, dk] = below_autograd(*call.ops->backward, dense_rows(grads[0]), dense_rows(grads[1]), saved[0], saved[1],
                                   call.dim, call.interleaved);
    return {{}, dq, dk, {}, {}, {}, {}};
  }
};

// linear/1

using LinearOps =
    Ops<Tensor(const Tensor&, const Tensor&, const OptTensor&), Tensor(const Tensor&, const Tensor&, const OptTensor&),
        Three(const Tensor&, const Tensor&, const Tensor&, bool)>;

struct LinearFunction : Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const LinearOps* ops, const Tensor& x, const Tensor& weight,
                        const OptTensor& bias) {
    keep(ctx, std::pair(ops, bias.has_value()));
    if (!ops->trains()) return below_autograd(ops->forward, x, weight, bias);
    ctx->save_for_backward({x, weight});
    return below_autograd(*ops->train, x, weight, bias);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& dy) {
    const auto [ops, has_bias] = kept<std::pair<const LinearOps*, bool>>(ctx);
    check_backward(ops->layer);
    const auto saved = ctx->get_saved_variables();  // x, weight
    auto [dx, dweight, dbias] = below_autograd(*ops->backward, dense(dy[0]), saved[0], saved[1], has_bias);
    return {{}, dx, dweight, has_bias ? dbias : Tensor()};
  }
};

}  // namespace

void bind_rms_norm(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<RmsNormForward>(slot, [ops = ops_of<RmsNormOps>(layer)](const Tensor& x, const Tensor& weight, double eps,
                                                                    double offset, const std::string& casting) {
    if (wants_grad(x, weight)) return RmsNormFunction::apply(ops, x, weight, eps, offset, casting);
    return below_autograd(ops->forward, x, weight, eps, offset, casting);
  });
}

void bind_add_rms_norm(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<AddRmsNormForward>(
      slot,
      [ops = ops_of<AddRmsNormOps>(layer)](const Tensor& x, const Tensor& residual, const Tensor& weight, double eps,
                                           double offset, const std::string& casting) -> Two {
        if (!wants_grad(x, residual, weight)) {
          return below_autograd(ops->forward, x, residual, weight, eps, offset, casting);
        }
        const auto out = AddRmsNormFunction::apply(ops, x, residual, weight, eps, offset, casting);
        return {out[0], out[1]};
      });
}

void bind_layer_norm(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<LayerNormForward>(slot, [ops = ops_of<LayerNormOps>(layer)](const Tensor& x, const Tensor& weight,
                                                                        const OptTensor& bias, double eps) {
    if (wants_grad(x, weight, bias)) return LayerNormFunction::apply(ops, x, weight, given(bias), eps);
    return below_autograd(ops->forward, x, weight, given(bias), eps);
  });
}

void bind_activation(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<ActivationForward>(slot, [ops = ops_of<ActivationOps>(layer)](const Tensor& x) {
    if (wants_grad(x)) return ActivationFunction::apply(ops, x);
    return below_autograd(ops->forward, x);
  });
}

void bind_gated(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<GatedForward>(slot, [ops = ops_of<GatedOps>(layer)](const Tensor& gate, const Tensor& up) {
    if (wants_grad(gate, up)) return GatedFunction::apply(ops, gate, up);
    return below_autograd(ops->forward, gate, up);
  });
}

void bind_rotary(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<RotaryForward>(slot,
                           [ops = ops_of<RotaryOps>(layer)](const Tensor& q, const Tensor& k, const Tensor& cos,
                                                            const Tensor& sin, int64_t dim, bool interleaved) -> Two {
                             if (wants_grad(cos, sin)) {
                               throw Error({.wanted = cat("cos and sin without gradient for ", ops->layer.str()),
                                            .got = "a table that requires it",
                                            .next = "detach it, or unkernelize rotary_pos_emb"});
                             }
                             if (!wants_grad(q, k))
                               return below_autograd(ops->forward, q, k, cos, sin, dim, interleaved);
                             const auto out = RotaryFunction::apply(ops, q, k, cos, sin, dim, interleaved);
                             return {out[0], out[1]};
                           });
}

void bind_linear(SlotBase& slot, const PackageLayer& layer) {
  bind_slot<LinearForward>(
      slot, [ops = ops_of<LinearOps>(layer)](const Tensor& x, const Tensor& weight, const OptTensor& bias) {
        if (wants_grad(x, weight, bias)) return LinearFunction::apply(ops, x, weight, given(bias));
        return below_autograd(ops->forward, x, weight, given(bias));
      });
}

}  // namespace hotswap
