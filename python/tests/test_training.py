"""Twenty steps, stock against swapped, under what people train with: losses must be equal."""

import contextlib
import copy
import json
from pathlib import Path

import pytest
import torch
import two_ranks
from tiny import Calls, batch, model, pattern, twin

STEPS = 20


def losses_of(m, autocast=False, accumulation=1, lr=1e-2, steps=STEPS):
    m.train()
    optimizer = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=lr)
    losses = []
    for step in range(steps):
        total = 0.0
        for part in range(accumulation):
            around = torch.autocast(torch.get_default_device().type, torch.bfloat16) if autocast else contextlib.nullcontext()
            with around:
                loss = m(**pattern(seed=step * accumulation + part)).loss / accumulation
            loss.backward()
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses


def compare(stock, ours, limit=1e-4, **options):
    with Calls() as calls:
        got = losses_of(ours, **options)
    want = losses_of(stock, **options)
    assert all(abs(a - b) <= limit * abs(b) for a, b in zip(got, want, strict=True)), list(zip(got, want))
    assert sum(want[-5:]) < sum(want[:5])  # it learns
    return calls.made


@pytest.mark.parametrize("family, fused", [("llama", True), ("gemma2", False)])
def test_plain_and_accumulated(family, fused):
    stock = model(family)
    calls = compare(stock, twin(stock, fused_linear_cross_entropy=fused), accumulation=2)
    assert calls["loss.linear_cross_entropy_fwd" if fused else "loss.cross_entropy_bwd"] == 2 * STEPS


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant):
    stock = model()
    ours = twin(stock, fused_linear_cross_entropy=True)
    for m in (stock, ours):
        m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        m.enable_input_require_grads()
    calls = compare(stock, ours)
    norms = sum(calls.get(f"norm.rms_norm{op}", 0) for op in ("", "_fwd"))
    # each layer's two twice (torch stops a recomputation once it has what it needs), the last norm once
    assert norms >= (4 * 2 - 2 + 1) * STEPS and calls["norm.rms_norm_bwd"] == 5 * STEPS


def test_selective_checkpointing():
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    layer = twin(model()).model.layers[0].mlp
    stock = copy.deepcopy(layer)
    import hotswap

    hotswap.unkernelize(stock)
    keep = lambda ctx, op, *a, **k: CheckpointPolicy.MUST_SAVE if "swiglu" in str(op) else CheckpointPolicy.PREFER_RECOMPUTE
    x = torch.randn(2, 5, 32, requires_grad=True)
    with Calls() as calls:
        context = lambda: create_selective_checkpoint_contexts(keep)
        y = checkpoint(layer, x, use_reentrant=False, context_fn=context)
        (got,) = torch.autograd.grad(y.square().sum(), x)
    assert calls.made == {"mlp.swiglu": 1, "mlp.swiglu_bwd_": 1}  # kept, not made again
    (want,) = torch.autograd.grad(stock(x).square().sum(), x)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)


def test_autocast():
    stock = model()
    calls = compare(stock, twin(stock, fused_linear_cross_entropy=True), limit=2e-3, autocast=True, lr=1e-3)
    assert calls["norm.rms_norm_fwd"] == 5 * STEPS and calls["mlp.swiglu_bwd_"] == 2 * STEPS


def test_lora():
    peft = pytest.importorskip("peft")
    config = lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "gate_proj", "down_proj"], init_lora_weights=False)
    made = []
    for swap in (False, True):
        m = model()
        torch.manual_seed(5)
        m = peft.get_peft_model(twin(m, fused_linear_cross_entropy=True) if swap else m, config())
        made.append(m)
    calls = compare(*made)
    # the head does not learn: in place of its logits, chunk by chunk
    assert calls["mlp.swiglu_bwd_"] == 2 * STEPS and calls["loss.cross_entropy_fwd_"] == STEPS
    assert "loss.linear_cross_entropy_fwd" not in calls
    after = model()  # bound after the adapters are in
    torch.manual_seed(5)
    after = peft.get_peft_model(after, config())
    import hotswap

    hotswap.kernelize(after)
    with Calls() as calls:
        after(**batch())
    # the first norm has nothing to train, neither before it nor in it
    assert calls.made["mlp.swiglu"] == 2 and calls.made["norm.rms_norm_fwd"] == 4 and calls.made["norm.rms_norm"] == 1


@pytest.mark.parametrize("way", ["", "as on a GPU"])
def test_two_ranks(tmp_path, way):
    """DDP, FSDP2 and tensor parallel over gloo, the first two with rows of each rank's own; see ranks.py."""
    two_ranks.run(Path(__file__).parent / "ranks.py", tmp_path / "result.json", way)
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result) == {"ddp", "fsdp2", "fsdp2, head apart", "fsdp2, head tied", "tensor parallel"}
    for name, (losses, want, gradients, calls) in result.items():
        assert all(abs(a - b) <= 1e-5 * abs(b) for a, b in zip(losses, want, strict=True)), name
        assert sum(want[-5:]) < sum(want[:5])
        assert gradients[0] <= 1e-4, (name, *gradients)  # of the first step and the last
        split = name == "tensor parallel"  # then DTensor refers to gate and up, too
        assert calls["norm.rms_norm_bwd"] == 5 * STEPS, name
        assert calls["mlp.swiglu_bwd" if split else "mlp.swiglu_bwd_"] == 2 * STEPS, name
        if way:  # linked, in one node, with the residual: where weights and inputs are whole
            assert ("own mlp.swiglu_bwd_again_" in calls) == (not split), name
            # split, what attention gives is a collective under way and no plain tensor: its addition stays apart
            assert calls["own norm.add_rms_norm_bwd"] == (2 if split else 4) * STEPS, name
        assert calls["loss.cross_entropy_bwd" if split else "loss.linear_cross_entropy_fwd"] == STEPS, name


def test_two_ranks_beside_stock(tmp_path):
    """DDP and FSDP2, also of a mixture and with peft's adapters; see ranks_same.py."""
    pytest.importorskip("peft")
    two_ranks.run(Path(__file__).parent / "ranks_same.py", tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result) == 8
    for name, (stock, ours) in result.items():
        print(f"{name}: losses {stock['losses'][0]}, ..., {stock['losses'][-1]} -> {ours['losses'][-1]}")
        # float32: sums in another order, over eight steps of Adam
        assert ours["losses"] == pytest.approx(stock["losses"], rel=1e-5), name
        assert ours["norms"] == pytest.approx(stock["norms"], rel=1e-4), name
        steps, norms = len(stock["losses"]), 4 if "lora" in name else 5  # nothing before the first norm learns
        layer = "moe.moe_experts_bwd" if "mixtral" in name else "mlp.swiglu_bwd"
        made = sum(count for op, count in ours["calls"].items() if op.removesuffix("_") == layer)
        assert stock["calls"] == {} and made == 2 * steps and ours["calls"]["norm.rms_norm_bwd"] == norms * steps, name


def test_zero(tmp_path):
    """DeepSpeed's ZeRO-1, 2 and 3; see zero.py."""
    pytest.importorskip("peft")
    pytest.importorskip("deepspeed")
    two_ranks.run(Path(__file__).parent / "zero.py", tmp_path / "result.json")
    result = json.loads((tmp_path / "result.json").read_text())
    assert len(result) == 7
    for name, ((stock, none), (got, calls)) in result.items():
        print(f"{name}: losses {stock[0]}, ..., {stock[-1]} -> {got[-1]}")
        assert none == {}, name
        assert all(abs(a - b) <= 1e-4 * abs(b) for a, b in zip(got, stock, strict=True)), name
        assert sum(stock[-5:]) < sum(stock[:5])
        assert calls["norm.rms_norm_bwd"] == (4 if "adapters" in name else 5) * STEPS, name
        assert calls["moe.moe_experts_bwd_" if "mixtral" in name else "mlp.swiglu_bwd_"] == 2 * STEPS, name
        assert calls["loss.linear_cross_entropy_fwd" if "llama" in name else "loss.cross_entropy_bwd"] == STEPS, name


def test_qlora(tmp_path):
    """Weights in four bits by bitsandbytes, adapters on top."""
    peft = pytest.importorskip("peft")
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    model(hidden_size=64, intermediate_size=128).save_pretrained(tmp_path)
    made = []
    for swap in (False, True):
        quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
        m = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=quantized, device_map="cpu")
        assert type(m.model.layers[0].mlp.gate_proj).__name__ == "Linear4bit"
        m = peft.prepare_model_for_kbit_training(m, use_gradient_checkpointing=False)
        torch.manual_seed(5)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "gate_proj", "down_proj"], init_lora_weights=False)
        m = peft.get_peft_model(m, config)
        made.append(twin(m) if swap else m)
    calls = compare(*made)
    assert calls["mlp.swiglu_bwd_"] == 2 * STEPS and calls["loss.cross_entropy_bwd"] == STEPS
