"""Experts of mixtures: which formula a class computes, our forward against the class's own, and every way that leads to it."""

import copy
import importlib
import json
from pathlib import Path

import pytest
import torch
import transformers
import two_ranks
from test_training import losses_of
from transformers.models.mixtral.modeling_mixtral import MixtralExperts
from tiny import FAMILIES, Calls, batch, close, gradients, model, pattern, routed_as, same_gradients, same_step, twin

import hotswap
from hotswap.core.replacement import inside
from hotswap.matchers import experts

MIXTURES = "mixtral qwen2_moe qwen3_moe olmoe gpt_oss llama4_text deepseek_v2 deepseek_v3 qwen3_next hunyuan_v1_moe".split()
SCALED = {"llama4_text"}  # its experts are behind no interface of transformers

# class, its config, what it computes
SMALL = dict(hidden_size=16, intermediate_size=24, moe_intermediate_size=12, num_experts_per_tok=2)
FORMULAS = [
    ("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3), ("swiglu",)),
    ("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3, hidden_act="gelu"), ("geglu",)),
    ("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3, hidden_act="gelu_pytorch_tanh"), ("geglu_tanh",)),
    ("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3, hidden_act="relu"), ("reglu",)),
    ("gpt_oss", "GptOssExperts", "GptOssConfig", dict(num_local_experts=3), ("swiglu_oai", 1.702, 7.0, True)),
    ("deepseek_v4", "DeepseekV4Experts", "DeepseekV4Config", dict(n_routed_experts=3, swiglu_limit=3.0), ("swiglu_clamped", 1.0, 3.0)),
    ("nemotron_h", "NemotronHExperts", "NemotronHConfig", dict(n_routed_experts=3, mlp_hidden_act="relu2"), ("relu2",)),
    ("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3, hidden_act="tanh"), None),
]  # fmt: skip


def made(family, name, config, options):
    module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    built = getattr(module, name)(getattr(transformers, config)(**SMALL, **options))
    torch.manual_seed(0)
    with torch.no_grad():
        for p in built.parameters():
            p.normal_(0, 0.5)
    return built


def routing(tokens=9, k=2, count=3, seed=0):
    generator = torch.Generator("cpu").manual_seed(seed)
    index = torch.randint(0, count, (tokens, k), generator=generator, device="cpu")
    scores = torch.rand(tokens, k, generator=generator, device="cpu")
    return index.to(torch.get_default_device()), scores.to(torch.get_default_device())


def eager(module):
    return type(module).forward.__wrapped__.__get__(module)


def width(module):
    return module.down_proj.shape[2 if getattr(module, "is_transposed", False) else 1]


@pytest.mark.parametrize("family, name, config, options, formula", FORMULAS)
def test_the_formula_of_a_class(family, name, config, options, formula):
    module = made(family, name, config, options)
    found = experts.Experts().match(module)
    if formula is None:
        assert found == []
        row = hotswap.report(hotswap.kernelize(torch.nn.Sequential(module))).rows[0]
        assert row.layer == "Experts" and row.package is None and "MixtralExperts computes something else" in row.why
        with pytest.raises(NotImplementedError, match="got MixtralExperts; set another experts_implementation"):
            experts.experts_forward(module, torch.randn(9, 16), *routing())
        return
    assert experts.Form(*formula) in [cell.cell_contents for cell in inside(found[0].forward).__closure__]
    index, weights = routing()
    x = 3 * torch.randn(9, width(module))
    results = []
    for forward in (eager(module), found[0].forward.__get__(module)):
        given, scores = x.clone().requires_grad_(), weights.clone().requires_grad_()
        y = forward(given, index, scores)
        mine = gradients(module, (y * torch.cos(torch.arange(y.numel()).view_as(y))).sum())
        results.append((y.detach(), mine | {"x": given.grad, "weights": scores.grad}))
    close(results[1][0], results[0][0])
    same_gradients(results[1][1], results[0][1])


def test_ids_of_other_ranks_are_skipped():
    module = made("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3))
    forward = experts.Experts().match(module)[0].forward.__get__(module)
    index, weights = routing()
    foreign = torch.zeros_like(index, dtype=torch.bool)
    foreign[2], foreign[4, 1], foreign[5, 0] = True, True, True
    x, results = torch.randn(9, 16), []
    with torch.no_grad():
        want = eager(module)(x, index, weights.masked_fill(foreign, 0.0))
    for other in (3, 4, 1000, -1):
        given, scores = x.clone().requires_grad_(), weights.clone().requires_grad_()
        y = forward(given, index.masked_fill(foreign, other), scores)
        close(y, want)
        y.square().sum().backward()
        assert scores.grad[foreign].abs().max() == 0 and scores.grad[~foreign].abs().min() > 0
        assert given.grad[2].abs().max() == 0
        results.append(given.grad)
    assert all(torch.equal(results[0], g) for g in results[1:])


def stock_of(family, **changes):
    stock = model(family, **changes)
    if family not in SCALED:
        stock.set_experts_implementation("eager")
    return stock


def count(swapped):
    return sum(row.layer in ("Experts", "MegaBlocksMoeMLP", "Llama4TextMoe") for row in hotswap.report(swapped).rows)


@pytest.mark.parametrize("family", MIXTURES)
def test_a_model_beside_its_eager_experts(family):
    """Loss, the auxiliary loss in it, and gradients; routers are modules still, so their logits are recorded."""
    stock = stock_of(family)
    swapped, data = twin(stock, strict=True), batch()
    assert count(swapped) > 0 and all(row.package or row.by_choice for row in hotswap.report(swapped).rows)
    got, calls = same_step(swapped.train(), stock.train(), data)
    assert calls["moe.moe_experts_train"] == count(swapped)
    assert calls.get("moe.moe_experts_bwd", 0) + calls.get("moe.moe_experts_bwd_", 0) == count(swapped)
    with torch.no_grad():
        want = stock(**data)
    assert (getattr(got, "aux_loss", None) is None) == (getattr(want, "aux_loss", None) is None)
    if getattr(want, "aux_loss", None) is not None:
        close(got.aux_loss, want.aux_loss)
        for mine, theirs in zip(got.router_logits, want.router_logits, strict=True):
            close(mine, theirs, 1e-5)
    swapped.eval(), stock.eval()
    with torch.no_grad(), Calls() as calls:
        close(swapped(**data).logits, stock(**data).logits)
    assert calls.made["moe.moe_experts"] == count(swapped)
    with torch.no_grad(), Calls() as calls:
        assert torch.equal(hotswap.unkernelize(swapped)(**data).logits, stock(**data).logits)
    assert calls.made == {}


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3", "llama4_text"])
def test_generate(family):
    stock = stock_of(family).eval()
    stock.config.output_router_logits = False  # stock generate() fails with it
    swapped, ids = twin(stock, strict=True), batch()["input_ids"]
    want = stock.generate(ids, max_new_tokens=6, do_sample=False)
    with Calls() as calls:
        assert torch.equal(swapped.generate(ids, max_new_tokens=6, do_sample=False), want)
    assert calls.made["moe.moe_experts"] == 6 * count(swapped)


def test_as_an_implementation_that_transformers_knows(tmp_path):
    hotswap.register_experts()
    stock, data = stock_of("qwen3_moe").train(), batch()
    stock.save_pretrained(tmp_path)
    ours = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, experts_implementation="hotswap").train()
    ours.config.output_router_logits = True
    _, calls = same_step(ours, stock, data)
    mixtures = sum(experts.Experts().serves(m) == "Experts" for m in ours.modules())
    assert calls["moe.moe_experts_train"] == mixtures > 0
    switched = copy.deepcopy(stock).eval()
    switched.set_experts_implementation("hotswap")
    switched.config.output_router_logits = stock.config.output_router_logits = False
    want = stock.eval().generate(data["input_ids"], max_new_tokens=4, do_sample=False)
    with Calls() as calls:
        assert torch.equal(switched.generate(data["input_ids"], max_new_tokens=4, do_sample=False), want)
    assert calls.made == {"moe.moe_experts": 4 * mixtures}  # generate() leaves a name that is not transformers' own


def test_the_option():
    swapped = twin(model("mixtral"), experts=False)
    with torch.no_grad(), Calls() as calls:
        swapped(**batch())
    assert not any(op.startswith("moe.") for op in calls.made) and calls.made["activation.silu"] > 0
    assert {row.why for row in hotswap.report(swapped).rows if row.layer == "Experts"} == {"experts is off"}


def test_what_is_quantised_stays_stock():
    module = made("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3))
    module.gate_up_proj = torch.nn.Parameter(module.gate_up_proj.detach().to(torch.float8_e4m3fn), requires_grad=False)
    assert experts.Experts().match(module) == []


ONE_GRAPH = [(family, way) for family in ("mixtral", "qwen3_moe", "gpt_oss", "llama4_text") for way in ("kernelize", "interface")
             if way == "kernelize" or family not in SCALED]  # fmt: skip


@pytest.mark.parametrize("family, way", ONE_GRAPH)
def test_compiled_in_one_graph(family, way):
    torch.compiler.reset()
    stock = stock_of(family)
    stock.config.output_router_logits = False  # transformers' hooks, and its loss, break the graph
    if way == "kernelize":
        ours = twin(stock, strict=True)
    else:
        hotswap.register_experts()
        ours = copy.deepcopy(stock)
        ours.set_experts_implementation("hotswap")
    compiled, data = torch.compile(ours, fullgraph=True, backend="aot_eager"), batch() | {"use_cache": False}
    if way == "interface":
        with pytest.raises(Exception, match="run the model once before it is compiled"):
            compiled(**data)
        with torch.no_grad():
            ours(**data)
    _, calls = same_step(ours.train(), stock.train(), data, 1e-5, 5e-5, run=compiled)
    assert calls["moe.moe_experts_train"] > 0
    ours.eval(), stock.eval()
    with torch.no_grad(), Calls() as calls:
        close(compiled(**data).logits, stock(**data).logits, 1e-5)
    assert calls.made["moe.moe_experts"] > 0


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "llama4_text"])
def test_autocast(family):
    """Weights decide the type, as in transformers' grouped_mm: float32 ones stay, bfloat16 ones narrow what comes in."""
    wide, data = stock_of(family).eval(), batch()
    for dtype, limit in ((torch.float32, 2e-2), (torch.bfloat16, 3e-2)):  # bfloat16 elsewhere: 2^-8 a rounding, some tens
        swapped = twin(wide).to(dtype)
        narrow = torch.autocast(torch.get_default_device().type, torch.bfloat16)
        with routed_as(wide, data, swapped), torch.no_grad(), narrow, Calls() as calls:
            got = swapped(**data).logits
        assert calls.made["moe.moe_experts"] == count(swapped)
        with torch.no_grad():
            close(got.float(), wide(**data).logits, limit)


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss", "llama4_text"])
def test_training_under_autocast(family):
    """Float32 weights: experts compute in float32, and get float32 gradients, whatever the layers around them narrow to."""
    stock, data = stock_of(family).train(), batch()
    ours = twin(stock)
    narrow = torch.autocast(torch.get_default_device().type, torch.bfloat16)
    with routed_as(stock, data, ours), narrow, Calls() as calls:
        loss = ours(**data).loss
        mine = gradients(ours, loss)
    assert calls.made["moe.moe_experts_train"] == count(ours)
    wide = stock(**data).loss
    want = gradients(stock, wide)
    close(loss.float(), wide, 2e-2)
    of_experts = [n for n in want if ".experts." in n]
    assert of_experts and all(mine[n].dtype == torch.float32 for n in of_experts)
    for name in of_experts:
        close(mine[name], want[name], 2e-2)  # as above


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3", "llama4_text"])
def test_training(family):
    stock = stock_of(family)
    ours = twin(stock)
    with Calls() as calls:  # at ten times the rate what rounds differently grows to 1e-3 in 50 steps
        got = losses_of(ours, lr=1e-3, steps=50)
    want = losses_of(stock, lr=1e-3, steps=50)
    assert all(abs(a - b) <= 1e-4 * abs(b) for a, b in zip(got, want, strict=True)), list(zip(got, want))
    assert sum(want[-5:]) < sum(want[:5])
    assert calls.made["moe.moe_experts_train"] == 50 * count(ours)


def adapted(m):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=3, target_modules=[], target_parameters=["experts.gate_up_proj", "experts.down_proj"], init_lora_weights=False
    )
    torch.manual_seed(5)
    return peft.get_peft_model(m, config).train()


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_adapters_on_experts(family):
    made, data = [], batch()
    for swap in (False, True):
        m = stock_of(family)
        made.append(adapted(twin(m) if swap else m))
    _, calls = same_step(made[1], made[0], data)
    assert calls["moe.moe_experts_train"] == count(made[1])
    trained = [name for name, p in made[1].named_parameters() if p.grad is not None]
    assert trained and all("lora_" in name for name in trained)


def test_adapters_on_experts_that_are_bound_as_a_block():
    """Llama 4's experts are called by nobody but their block, which ours reads the weights of: with adapters they run stock."""
    data, stock = batch(), adapted(stock_of("llama4_text"))
    for ours in (adapted(twin(stock_of("llama4_text"))), twin(stock)):
        _, calls = same_step(ours, stock, data)
        assert "moe.moe_experts_train" not in calls and calls["norm.rms_norm_fwd"] > 0


def test_frozen_experts_have_no_gradient():
    stock = stock_of("mixtral").train()
    for name, p in stock.named_parameters():
        p.requires_grad_("experts" not in name)
    _, calls = same_step(twin(stock), stock, batch())
    assert calls["moe.moe_experts_train"] == 2


def test_ligers_layer():
    layer = hotswap.LigerExperts(transformers.MixtralConfig(hidden_size=16, intermediate_size=24, num_local_experts=3))
    stock = made("mixtral", "MixtralExperts", "MixtralConfig", dict(num_local_experts=3))
    layer.load_state_dict(stock.state_dict())
    x, (index, weights) = torch.randn(9, 16), routing()
    with torch.no_grad(), Calls() as calls:
        close(layer(x, index, weights), eager(stock)(x, index, weights))
    assert calls.made == {"moe.moe_experts": 1}
    with pytest.raises(ValueError, match="LigerExperts: expected hidden_act silu or swish; got gelu"):
        hotswap.LigerExperts(transformers.MixtralConfig(**SMALL, hidden_act="gelu"))


# tokens, experts, width, inner width, experts of a token: what Liger tests its own with, odd sizes among them
LIGERS_SHAPES = [(7, 4, 64, 32, 2), (512, 8, 256, 128, 2), (512, 8, 97, 47, 2), (512, 7, 128, 64, 3), (512, 8, 256, 64, 1), (128, 8, 256, 64, 8)]

LIGERS_LIMIT = {torch.float32: 512**0.5 * 2**-24, torch.bfloat16: 4**0.5 * 2**-8}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", LIGERS_SHAPES, ids=str)
def test_ligers_shapes(shape, dtype):
    """Value and gradients in float64's light. float32: sums of up to 512 products, 512**0.5 roundings of 2**-24 if they do not
    know of each other. bfloat16: four roundings of 2**-8 on the way forward, and no more on any way back."""
    tokens, count, hidden, inner, k = shape
    sizes = dict(hidden_size=hidden, intermediate_size=inner, num_local_experts=count, num_experts_per_tok=k)
    layer = hotswap.LigerExperts(transformers.MixtralConfig(**sizes))
    generator = torch.Generator("cpu").manual_seed(7)
    random = lambda *shape: torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device())
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(random(*p.shape) * p.shape[-1] ** -0.5)
    layer, wide = layer.to(dtype), MixtralExperts(transformers.MixtralConfig(**sizes)).double()
    wide.load_state_dict(layer.state_dict())
    x = random(tokens, hidden).to(dtype)
    weights, index = random(tokens, count).softmax(-1).topk(k)
    dy, results = random(tokens, hidden).to(dtype), []
    for module, kind in ((layer, dtype), (wide, torch.float64)):
        given, scores = x.to(kind).requires_grad_(), weights.to(torch.promote_types(kind, torch.float32)).requires_grad_()
        with Calls() as calls:
            y = module(given, index, scores) if module is layer else eager(module)(given, index, scores)
            results.append((y, *torch.autograd.grad(y, [given, scores, *module.parameters()], dy.to(kind))))
        assert calls.made == ({"moe.moe_experts_train": 1, "moe.moe_experts_bwd_": 1} if module is layer else {})
    for got, want in zip(*results, strict=True):
        close(got, want, LIGERS_LIMIT[dtype])


@pytest.mark.parametrize("family, on", [("mixtral", True), ("qwen3_moe", True), ("gpt_oss", True), ("gpt_oss", False)])
def test_ligers_option(family, on):
    swapped = model(family)
    getattr(hotswap, f"apply_liger_kernel_to_{family}")(model=swapped, swiglu=on)
    with torch.no_grad(), Calls() as calls:
        swapped(**batch())
    assert calls.made.get("moe.moe_experts", 0) == (count(swapped) if on else 0)


def test_two_ranks(tmp_path):
    """FSDP2, and transformers' own plans: experts parted by width, and by expert (ids of other ranks)."""
    two_ranks.run(Path(__file__), tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result) == {"fsdp2", "tensor parallel", "expert parallel"}
    for name, (got, want, gradients, calls) in result.items():
        assert abs(got - want) <= 1e-5 * abs(want), name
        assert gradients <= 1e-4, name
        assert calls["moe.moe_experts_train"] == 2, name


def _on_two_ranks(folder):
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from transformers.distributed import DistributedConfig

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, data, result = dist.get_rank(), pattern(rows=4), {}
    even = dict(vocab_size=98)  # transformers' plan parts the head
    if rank == 0:
        stock_of("mixtral", **even).save_pretrained(folder)
    dist.barrier()
    alone = stock_of("mixtral", **even).train()
    want = gradients(alone, alone(**data).loss)

    def whole(g):
        if not isinstance(g, DTensor):
            return g
        # gate and up side by side, each parted: torch cannot put such a gradient together
        return g.full_tensor() if all(type(p) in (Shard, Replicate) for p in g.placements) else None


    def note(name, m, rows=slice(None)):
        hotswap.kernelize(m)
        with Calls() as calls:
            loss = m(**{k: v[rows] for k, v in data.items()}).loss
            mine = {n: whole(g) for n, g in gradients(m, loss).items()}
        loss = loss.detach()
        if rows != slice(None):
            dist.all_reduce(loss)
            loss /= 2
        same = [n for n in want if mine[n] is not None and mine[n].shape == want[n].shape]
        assert any("experts" in n for n in same) or name != "fsdp2"
        apart = max(float((mine[n] - want[n]).norm() / want[n].norm()) for n in same)
        result[name] = (loss.item(), alone(**data).loss.item(), apart, calls.made)

    mesh = init_device_mesh("cpu", (2,))
    ours = hotswap.kernelize(stock_of("mixtral", **even).train(), strict=True)
    ours.config.output_router_logits = alone.config.output_router_logits = False  # over a rank's own tokens alone
    want = gradients(alone, alone(**data).loss)
    for layer in ours.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(ours, mesh=mesh)
    note("fsdp2", ours, slice(2 * rank, 2 * rank + 2))

    load = transformers.AutoModelForCausalLM.from_pretrained
    hotswap.register_experts()
    # 5.24 refuses the older name
    by_experts = dict(ep_size=2) if hasattr(DistributedConfig, "ep_size") else dict(enable_expert_parallel=True)
    for name, options in (
        ("tensor parallel", dict(tp_plan="auto")),
        ("expert parallel", dict(distributed_config=DistributedConfig(tp_size=2, **by_experts))),
    ):
        ours = load(folder, experts_implementation="hotswap", **options).train()
        ours.config.output_router_logits = False
        note(name, ours)
        assert any("parallel plan" in row.why for row in hotswap.report(ours).rows), name

    if rank == 0:
        (Path(folder) / "result.json").write_text(json.dumps(result))
    two_ranks.leave()


if __name__ == "__main__":
    import sys

    _on_two_ranks(sys.argv[1])
