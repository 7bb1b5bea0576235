"""torch.optim.AdamW's formula and states; its update is one op for each list of tensors that are alike."""

import torch

from ._package import ops

STATES = ("parameter", "float32_master", "bfloat16_moments", "stochastic")


def _in_order_of(t, like):
    """A view of t in the order in which `like` is in memory (channels last, transposed): contiguous where t has its strides."""
    return t if like.is_contiguous() else t.permute(sorted(range(like.dim()), key=lambda d: -like.stride(d)))


class AdamW(torch.optim.Optimizer):
    """AdamW with decoupled weight decay, as torch.optim.AdamW: the same arguments, and the same states where `states` is "parameter".

    states: in which dtype exp_avg and exp_avg_sq are kept, and how bfloat16 is rounded
      "parameter"          the parameter's, rounded to nearest: what torch keeps
      "float32_master"     float32, and a float32 copy `master` of a parameter of 16 bits
      "bfloat16_moments"   bfloat16, rounded stochastically, and a float32 `master` of a bfloat16 parameter
      "stochastic"         bfloat16 parameters and states, all rounded stochastically, no master
    seed: of stochastic rounding. A run with the same seed and the same order of parameters rounds alike.

    Gradients have the parameter's dtype; parameters have no gaps in memory, and are in float32, bfloat16 or float16 ("bfloat16_moments" and
    "stochastic": not float16). Runs under torch.amp.GradScaler: what is not finite updates nothing.
    """

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, *, states="parameter", seed=0):
        if states not in STATES:
            raise ValueError(f"AdamW: expected states to be one of {', '.join(STATES)}; got {states!r}")
        for name, value, ok in (("lr", lr, lr >= 0), ("eps", eps, eps >= 0), ("weight_decay", weight_decay, weight_decay >= 0)):
            if not ok:
                raise ValueError(f"AdamW: expected {name} of at least 0; got {value}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"AdamW: expected betas of at least 0 and below 1; got {tuple(betas)}")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.states, self.seed = states, seed
        self._step_supports_amp_scaling = True  # GradScaler then hands over grad_scale and found_inf

    def load_state_dict(self, state_dict):
        """As torch's, but for the states' dtypes: those of the file, where torch would cast them to the parameter's."""
        super().load_state_dict(state_dict)
        flat = [p for group in self.param_groups for p in group["params"]]
        ids = [i for group in state_dict["param_groups"] for i in group["params"]]
        for i, p in zip(ids, flat, strict=True):
            for name, value in state_dict["state"].get(i, {}).items():
                if torch.is_tensor(value):
                    like = torch.empty_like(p, dtype=value.dtype) if value.dim() else torch.empty((), device=p.device)
                    self.state[p][name] = like.copy_(value)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        index = 0
        for group in self.param_groups:
            lists = {}
            for p in group["params"]:
                if p.grad is not None:
                    lists.setdefault((p.device, p.dtype), []).append(p)
            for (device, _), parameters in lists.items():
                self._update(group, parameters, self._scale(device), index)
                index += 1
        return loss

    def _scale(self, device):
        """What gradients are divided by; infinite where GradScaler found one that is not finite."""
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        scale = torch.ones((), device=device) if scale is None else scale.to(device, torch.float32).reshape(())
        return scale if found is None else scale / (1 - found.to(device, torch.float32).reshape(()))

    def _update(self, group, parameters, scale, index):
        for p in parameters:
            if not self.state[p]:
                self._begin(p)
        states = [self.state[p] for p in parameters]
        ordered = lambda name: [_in_order_of(s[name], p) for s, p in zip(states, parameters)]
        steps = [s["step"] for s in states]
        torch._foreach_add_(steps, torch.isfinite(scale).float())
        rounded = self.states in ("bfloat16_moments", "stochastic") and states[0]["exp_avg"].dtype == torch.bfloat16
        ops.adamw_(
            scale,
            [_in_order_of(p, p) for p in parameters],
            [_in_order_of(p.grad, p).contiguous() for p in parameters],
            ordered("exp_avg"),
            ordered("exp_avg_sq"),
            ordered("master") if "master" in states[0] else [],
            steps,
            float(group["lr"]),
            *group["betas"],
            group["eps"],
            group["weight_decay"],
            (self.seed << 16) + index if rounded else None,
        )

    def _begin(self, p):
        narrow = torch.bfloat16
        wide = {"parameter": p.dtype, "float32_master": torch.float32, "bfloat16_moments": narrow, "stochastic": narrow}[self.states]
        state = self.state[p]
        if self.states in ("float32_master", "bfloat16_moments") and p.dtype != torch.float32:
            state["master"] = p.to(torch.float32, copy=True)
        state["step"] = torch.zeros((), device=p.device)
        state["exp_avg"] = torch.zeros_like(p, dtype=wide)
        state["exp_avg_sq"] = torch.zeros_like(state["exp_avg"])
