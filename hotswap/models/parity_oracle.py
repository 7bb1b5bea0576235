"""Random tiny models of each family as transformers computes them: what models_parity_test compares with.

    python parity_oracle.py OUT SEED

OUT/cases.json holds {family: {case: {"config": {...}, "time": length of the sequences}}}. Each family's weights and ids
are drawn from SEED, whatever came before it. Writes OUT/<family>/<case>/ as save_pretrained does, OUT/<family>/error.txt
with the traceback where a family fails, and OUT/<family>/<case>/expected.safetensors:
    input_ids, labels [2, time]   logits [2, time, vocab]   loss, loss_items   grad.<parameter>
    mask [2, time], masked_logits         the same ids with the first row padded on the left
    bf16_logits                           the model and its arithmetic in bfloat16
    aux_loss, loss_with_aux, router_logits.<layer>, aux_grad.<parameter>, masked_aux_loss    of mixtures of experts that
                                          have an auxiliary loss
    prompt [1, n], greedy [1, n + new]    generate(do_sample=False)
and OUT/<family>/<case>/parameters.json: the parameters' names in the order that an optimizer's states have.
One process for all families: importing transformers is the slow part.
"""

import importlib
import inspect
import json
import os
import sys
import traceback

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"

import torch
import transformers
from safetensors.torch import save_file


def norm_by_groups():
    """Mamba-2's norm as mamba-ssm and transformers from 5.24 on have it: each group of channels by itself."""
    for family, norm, mixer in (("mamba2", "MambaRMSNormGated", "Mamba2Mixer"), ("bamba", "BambaRMSNormGated", "BambaMixer"),
                                ("granitemoehybrid", "GraniteMoeHybridRMSNormGated", "GraniteMoeHybridMambaLayer")):  # fmt: skip
        module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        by_groups(getattr(module, norm), getattr(module, mixer))


def by_groups(norm, mixer):
    if "group_size" in inspect.signature(norm.__init__).parameters:
        return
    make = mixer.__init__

    def made(self, config, *args, **kwargs):
        make(self, config, *args, **kwargs)
        self.norm.groups = self.n_groups

    def forward(self, hidden_states, gate=None):
        x = hidden_states.float() * torch.nn.functional.silu(gate.float())
        grouped = x.unflatten(-1, (self.groups, -1))
        x = grouped * torch.rsqrt(grouped.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x.flatten(-2).to(hidden_states.dtype)

    mixer.__init__, norm.forward = made, forward


def norm_in_float32():
    """Nemotron-H's norm as its publisher and transformers from 5.24 on have it: rounded once, after the weight."""
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) >= (5, 24):
        return
    from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHRMSNorm

    def forward(self, hidden_states):
        x = hidden_states.float()
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight.float() * x).to(hidden_states.dtype)

    NemotronHRMSNorm.forward = forward


def long_factors():
    """PhiMoE beyond its original length as its publisher has it: transformers 5.17 to 5.24 take the short factors there."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.phimoe.modeling_phimoe import PhimoeRotaryEmbedding

    plain = PhimoeRotaryEmbedding.forward

    def forward(self, x, position_ids=None):
        if self.rope_type == "longrope":
            make, length = ROPE_INIT_FUNCTIONS["longrope"], int(position_ids.max()) + 1
            self.rope_init_fn = lambda config, *args, **kwargs: make(config, x.device, seq_len=length)
        return plain(self, x, position_ids)

    PhimoeRotaryEmbedding.forward = forward


def padding_before_convolutions():
    """LFM2 with biases, a padded row equal to the row by itself: transformers masks the projection's input, and padding then has the
    projection's bias."""
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    plain = Lfm2ShortConv.forward

    def forward(self, hidden_states, past_key_values=None, attention_mask=None, **more):
        def masked(module, arguments, y):
            return y if attention_mask is None else y * attention_mask[:, :, None].to(y.dtype)

        hook = self.in_proj.register_forward_hook(masked)
        try:
            return plain(self, hidden_states, past_key_values, attention_mask, **more)
        finally:
            hook.remove()

    Lfm2ShortConv.forward = forward


def randomise(model):
    for name, p in model.named_parameters():
        if p.dim() == 1:
            p.data.normal_(0, 0.2).add_(0.0 if name.endswith("bias") else 1.0)
        else:
            p.data.normal_(0, 1.0 if "embed" in name else p.shape[1] ** -0.5)
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.normal_(0, 0.2)


def make_model(config):
    """By eager attention where scores are capped: sdpa, transformers' default, leaves the cap out."""
    capped = config.model_type == "gemma2" and config.attn_logit_softcapping is not None
    return transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager" if capped else None)


def only_recurs(config):
    """transformers counts a cache's tokens by keys, and these families' models fail where no layer has any."""
    mixed = config.model_type in ("bamba", "granitemoehybrid")
    return mixed and set(config.layer_types) == {"linear_attention"}


def auxiliary(model, out):
    if "output_router_logits" not in inspect.signature(model.forward).parameters:
        return
    if model.config.model_type.startswith("granitemoe"):  # transformers 5.17 collects no logits of its routers, and fails
        return
    if getattr(model.config, "num_experts", None) == 0:  # Qwen3-Next without experts has no routers, and transformers fails
        return
    model.zero_grad()
    result = model(input_ids=out["input_ids"], labels=out["labels"], output_router_logits=True, use_cache=False)
    result.loss.backward()
    out["loss_with_aux"], out["aux_loss"] = result.loss.detach(), result.aux_loss.detach()
    out |= {f"router_logits.{i}": logits.detach() for i, logits in enumerate(result.router_logits)}
    out |= {f"aux_grad.{name}": p.grad.clone() for name, p in model.named_parameters() if ".gate.weight" in name or "router" in name}
    with torch.no_grad():
        masked = model(input_ids=out["input_ids"], attention_mask=out["mask"], position_ids=out["position_ids"],
                       output_router_logits=True, use_cache=False)  # fmt: skip
    out["masked_aux_loss"] = masked.aux_loss


def write_case(folder, config, time):
    config = transformers.AutoConfig.for_model(**config, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    model = make_model(config)
    randomise(model)
    model.eval()
    model.save_pretrained(folder)
    with open(os.path.join(folder, "parameters.json"), "w") as f:
        json.dump([name for name, _ in model.named_parameters()], f)
    ids = torch.randint(3, config.vocab_size, (2, time))
    labels = ids.clone()
    labels[0, 1:3] = -100
    out = {"input_ids": ids, "labels": labels}

    result = model(input_ids=ids, labels=labels, use_cache=False)
    result.loss.backward()
    out["logits"], out["loss"] = result.logits.detach(), result.loss.detach()
    out |= {f"grad.{name}": p.grad.clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        out["loss_items"] = model(input_ids=ids, labels=labels, num_items_in_batch=7, use_cache=False).loss
        mask = torch.ones_like(ids)
        mask[0, : time // 2] = 0
        position_ids = (mask.cumsum(-1) - 1).clamp(min=0)
        out["mask"], out["position_ids"] = mask, position_ids
        out["masked_logits"] = model(input_ids=ids, attention_mask=mask, position_ids=position_ids, use_cache=False).logits
        out["prompt"] = ids[:1, :5].clone()
        # A fresh module: dynamic rotary embeddings remember the longest sequence that they have seen.
        fresh = make_model(config).eval()
        fresh.load_state_dict(model.state_dict())
        out["greedy"] = fresh.generate(out["prompt"], max_new_tokens=12, do_sample=False, eos_token_id=None,
                                       use_cache=not only_recurs(config))  # fmt: skip
        for p in fresh.parameters():  # not .to(): rotary frequencies stay float32, as from_pretrained has them
            p.data = p.data.bfloat16()
        for module in fresh.modules():
            if hasattr(module, "mup_vector"):  # Falcon-H1's, which from_pretrained makes in the model's dtype
                module.mup_vector = module.mup_vector.bfloat16()
        out["bf16_logits"] = fresh(input_ids=ids, use_cache=False).logits
    auxiliary(model, out)
    save_file({k: v.contiguous() for k, v in out.items()}, os.path.join(folder, "expected.safetensors"))


def main():
    root, seed = sys.argv[1], int(sys.argv[2])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    norm_by_groups()
    norm_in_float32()
    long_factors()
    padding_before_convolutions()
    torch.set_num_threads(2)
    with open(os.path.join(root, "cases.json")) as f:
        families = json.load(f)
    for family, cases in families.items():
        torch.manual_seed(seed)
        try:
            for name, case in cases.items():
                write_case(os.path.join(root, family, name), case["config"], case["time"])
        except Exception:  # the tests of this family fail with it, those of the others run
            os.makedirs(os.path.join(root, family), exist_ok=True)
            with open(os.path.join(root, family, "error.txt"), "w") as f:
                traceback.print_exc(file=f)


if __name__ == "__main__":
    main()
