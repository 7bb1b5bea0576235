"""State-space models, and others with the same convolution: tiny random ones, stock and swapped."""

import os

import kernels
import pytest
import torch
import transformers as T
from tiny import Calls, close, gradients, same_gradients, twin

import hotswap
from hotswap.core.packages import package, packages_folder
from hotswap.matchers import mixers

BASE = dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=48, max_position_embeddings=64)
ONE = dict(BASE, state_size=4, time_step_rank=3, intermediate_size=64)
BOTH = dict(BASE, **HEADS, mamba_n_heads=4, mamba_d_head=16, mamba_d_state=4, mamba_n_groups=2, mamba_chunk_size=8)

# fmt: off
MODELS = {  # the model, and how often it calls which function of a mixer
    "mamba": (lambda: T.MambaForCausalLM(T.MambaConfig(**ONE)), "scan", 2),
    "falcon_mamba": (lambda: T.FalconMambaForCausalLM(T.FalconMambaConfig(**ONE)), "scan", 2),
    "jamba": (lambda: T.JambaForCausalLM(T.JambaConfig(**BASE, **HEADS, mamba_d_state=4, mamba_dt_rank=3, num_experts=2,
        attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1)), "scan", 1),
    "zamba": (lambda: T.ZambaForCausalLM(T.ZambaConfig(**dict(BASE, num_hidden_layers=3), **HEADS, mamba_d_state=4, mamba_dt_rank=4,
        n_mamba_heads=2, layers_block_type=["mamba", "hybrid", "hybrid"], attention_head_dim=16)), "scan", 6),
    "mamba2": (lambda: T.Mamba2ForCausalLM(T.Mamba2Config(**BASE, num_heads=4, head_dim=16, state_size=4, n_groups=2,
        chunk_size=8)), "ssd", 2),
    "zamba2": (lambda: T.Zamba2ForCausalLM(T.Zamba2Config(**BASE, **HEADS, mamba_d_state=4, n_mamba_heads=4, mamba_headdim=16,
        mamba_ngroups=2, chunk_size=8, layers_block_type=["mamba", "hybrid"], use_mem_rope=True)), "ssd", 2),
    "bamba": (lambda: T.BambaForCausalLM(T.BambaConfig(**BOTH, attn_layer_indices=[1])), "ssd", 1),
    "granitemoehybrid": (lambda: T.GraniteMoeHybridForCausalLM(T.GraniteMoeHybridConfig(**BOTH, num_local_experts=2,
        num_experts_per_tok=1, shared_intermediate_size=16, layer_types=["mamba", "attention"])), "ssd", 1),
    "falcon_h1": (lambda **more: T.FalconH1ForCausalLM(T.FalconH1Config(**BOTH, mamba_d_ssm=64, **more)), "ssd", 2),
    "nemotron_h": (lambda: T.NemotronHForCausalLM(T.NemotronHConfig(**BASE, **HEADS, head_dim=8, mamba_num_heads=4,
        mamba_head_dim=16, ssm_state_size=4, n_groups=2, chunk_size=8, layers_block_type=["mamba", "attention"])), "ssd", 1),
    "lfm2": (lambda: T.Lfm2ForCausalLM(T.Lfm2Config(**BASE, **HEADS, layer_types=["conv", "full_attention"])), None, 1),
    "qwen3_next": (lambda: T.Qwen3NextForCausalLM(T.Qwen3NextConfig(**BASE, **HEADS, head_dim=8, num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16, linear_num_key_heads=2, linear_num_value_heads=2,
        linear_key_head_dim=8, linear_value_head_dim=8, layer_types=["linear_attention", "full_attention"])), None, 1),
}
# fmt: on
NORMS = {"mamba2": 2, "zamba2": 2, "bamba": 1, "granitemoehybrid": 1, "nemotron_h": 1, "qwen3_next": 1}  # with a gate
ON_GPU = os.environ.get("HOTSWAP_TEST_DEVICE", "").startswith("cuda")
NAMES = {
    "scan": dict(forward="selective_scan_fwd", backward="selective_scan_bwd", inference="selective_scan"),
    "ssd": dict(forward="ssd_fwd", backward="ssd_bwd", inference="ssd"),
}


def ids(rows=2, columns=11):
    made = torch.randint(3, 97, (rows, columns), generator=torch.Generator("cpu").manual_seed(1), device="cpu")
    return made.to(torch.get_default_device())


def model(name, **changes):
    torch.manual_seed(0)
    made = MODELS[name][0](**changes)
    with torch.no_grad():  # fresh biases are zeros, fresh decays and norms the same in each channel
        for key, p in made.named_parameters():
            if p.dim() == 1 or "A_log" in key:
                p += 0.1 * torch.randn_like(p)
    return made


def scan_of(name):
    """Which scan of ours it calls, and how often a function of a mixer."""
    return MODELS[name][1:]


def ours(calls):
    return {op.removeprefix("mamba."): n for op, n in calls.items() if op.startswith("mamba.")}


@pytest.fixture(params=MODELS)
def name(request):
    return request.param


def test_training_step_of_padded_rows(name):
    stock = model(name)
    swapped = twin(stock)
    assert stock.training
    mask = torch.ones_like(ids())
    mask[1, :3] = 0  # padding in front reaches the states behind it
    given = dict(input_ids=ids(), labels=ids().masked_fill(mask == 0, -100), attention_mask=mask)
    with Calls() as calls:
        got = swapped(**given)
        mine = gradients(swapped, got.loss)
    want = stock(**given)
    close(got.logits, want.logits, 1e-5)
    close(got.loss, want.loss, 1e-5)
    same_gradients(mine, gradients(stock, want.loss), 1e-4)
    scan, count = scan_of(name)
    convs = count // 2 if name == "zamba" else count  # its heads are scanned one by one
    made = {"causal_conv1d": convs, "causal_conv1d_bwd": convs}
    if scan:
        made |= {NAMES[scan]["forward"]: count, NAMES[scan]["backward"]: count}
    if norms := NORMS.get(name):
        made |= {"gated_rms_norm_fwd": norms, "gated_rms_norm_bwd": norms}
    assert ours(calls.made) == made


@torch.no_grad()
def generated(m, **given):
    out = m.generate(**given, max_new_tokens=4, do_sample=False, output_logits=True, return_dict_in_generate=True)
    return torch.stack(out.logits)


def test_generation_with_a_cache(name):
    stock = model(name).eval()
    swapped = twin(stock)
    mask = torch.ones_like(ids())
    mask[1, :3] = 0
    with Calls() as calls:
        got = generated(swapped, input_ids=ids(), attention_mask=mask)
    close(got, generated(stock, input_ids=ids(), attention_mask=mask), 1e-5)
    scan, count = scan_of(name)
    convs = count // 2 if name == "zamba" else count
    made = {"causal_conv1d": convs, "causal_conv1d_update": 3 * convs}
    if scan:
        made |= {NAMES[scan]["inference"]: count}
    if MODELS[name][1]:
        made |= {"selective_state_update": 3 * count}
    if norms := NORMS.get(name):
        made |= {"gated_rms_norm": 4 * norms}
    assert ours(calls.made) == made


def test_prompts_shorter_than_the_filter(name):
    stock = model(name).eval()
    close(generated(twin(stock), input_ids=ids(2, 2)), generated(stock, input_ids=ids(2, 2)), 1e-5)


def functions(m):
    """The rows of the functions that mixers call."""
    layers = {layer for layer, _ in mixers.FUNCTIONS.values()}
    return [row for row in hotswap.report(m).rows if row.layer in layers]


def test_the_report_and_back(name):
    stock = model(name)
    m = twin(stock)
    rows = functions(m)
    assert rows and all(row.package == "mamba" for row in rows)
    place = rows[0].name.removesuffix(".conv1d")
    mixer, forward = m.get_submodule(place), type(stock.get_submodule(place)).forward
    assert mixer.forward.__func__ is not forward
    hotswap.unkernelize(m)
    assert mixer.forward.__func__ is forward
    kept = hotswap.kernelize(m, mamba=False)
    assert {row.why for row in functions(kept)} == {"mamba is off"}


def test_another_activation_stays_stock():
    config = T.MambaConfig(**ONE, hidden_act="gelu")
    m = T.MambaForCausalLM(config)
    swapped = twin(m)
    with Calls() as calls:
        close(swapped(ids()).logits, m(ids()).logits)
    rows = functions(swapped)
    assert not ours(calls.made) and {row.why for row in rows} == {"MambaMixer computes something else"}


# ---- where stock is wrong ---------------------------------------------------------------------------------------------


def apart(got, want):
    return float((got.double() - want.double()).norm() / want.double().norm())


def test_delta_of_short_numbers():
    """Stock adds its bias and takes softplus in bfloat16; ours in float32, so that the state is exact but for that."""
    from hotswap.mamba import mamba_chunk_scan_combined, selective_scan_fn
    from transformers.models.mamba.modeling_mamba import mamba_selective_scan
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan

    torch.manual_seed(0)
    u, delta, B, C = (torch.randn(2, n, 40).bfloat16() for n in (6, 6, 4, 4))
    A, bias = -torch.rand(6, 4), torch.randn(6)
    options = dict(delta_softplus=True, return_last_state=True)
    wide = [t.double() for t in (u, delta, A, B, C)]
    want = mamba_selective_scan(*wide, delta_bias=bias.double(), **options)[1]
    assert apart(selective_scan_fn(u, delta, A, B, C, delta_bias=bias, **options)[1], want) < 1e-5
    assert apart(mamba_selective_scan(u, delta, A, B, C, delta_bias=bias, **options)[1], want) > 1e-3

    x, dt, B, C = (torch.randn(2, 40, *n).bfloat16() for n in ((4, 3), (4,), (2, 5), (2, 5)))
    A, bias = -torch.rand(4), torch.randn(4)
    options = dict(chunk_size=8, dt_softplus=True, return_final_states=True)
    wide = [t.double() for t in (x, dt, A, B, C)]
    want = mamba2_chunk_scan(*wide, dt_bias=bias.double(), **options)[1]
    rounded = 2**-8 if ON_GPU else 1e-5  # what goes into a product of bfloat16 there is rounded to it
    assert apart(mamba_chunk_scan_combined(x, dt, A, B, C, dt_bias=bias, **options)[1], want) < rounded
    assert apart(mamba2_chunk_scan(x, dt, A, B, C, dt_bias=bias, **options)[1], want) > 1e-3


@pytest.mark.parametrize("name", [n for n, (_, scan, _) in MODELS.items() if scan == "ssd"])
def test_packed_sequences_do_not_leak(name):
    """Stock's Mamba-2 goes on with the state of the sequence before, whatever seq_idx says; from 5.24 on it refuses seq_idx."""
    stock = model(name).eval()
    swapped = twin(stock)
    first, second = ids(1, 5), ids(1, 9) + 1
    packed = dict(
        input_ids=torch.cat([first, second], 1),
        seq_idx=torch.tensor([[0] * 5 + [1] * 9], dtype=torch.int32),
        position_ids=torch.tensor([[*range(5), *range(9)]]),
    )
    mixer = next(m for n, m in stock.named_modules() if n.endswith(("mixer", "mamba")) and hasattr(m, "in_proj"))
    ours = next(m for n, m in swapped.named_modules() if n.endswith(("mixer", "mamba")) and hasattr(m, "in_proj"))
    hidden = torch.randn(1, 14, 32, generator=torch.Generator("cpu").manual_seed(3), device="cpu").to(torch.get_default_device())
    with torch.no_grad():
        alone = ours(hidden[:, 5:])
        close(alone, mixer(hidden[:, 5:]), 1e-5)
        close(ours(hidden, seq_idx=packed["seq_idx"])[:, 5:], alone, 1e-5)
        try:
            leaked = mixer(hidden, seq_idx=packed["seq_idx"])[:, 5:]
        except ValueError as error:
            assert "packed sequences" in str(error)
        else:
            assert apart(leaked, alone) > 1e-2
        lengths = torch.tensor([0, 5, 14])
        more = dict(cu_seq_lens_q=lengths, cu_seq_lens_k=lengths, max_length_q=9, max_length_k=9)
        close(ours(hidden, **more)[:, 5:], alone, 1e-5)


def test_the_norm_of_mamba2_is_the_same_in_training():
    """The kernel that transformers would take for training has a norm in groups, the model over the whole width: with ours
    training and evaluation are one function."""
    m = twin(model("mamba2"))
    with torch.no_grad():
        close(m.train()(ids()).logits, m.eval()(ids()).logits, 1e-6)


def test_a_token_of_falcon_h1_with_a_norm():
    """Stock's norm lost the dimension of a single token until 5.23: two rows of a batch saw each other."""
    stock = model("falcon_h1", mamba_rms_norm=True).eval()
    swapped = twin(stock)
    assert not [row for row in hotswap.report(swapped).rows if row.layer == "RMSNormGated" and row.package is None]

    def token(m):
        past = m(ids()[:, :-1], use_cache=True).past_key_values
        return m(ids()[:, -1:], past_key_values=past, use_cache=True).logits

    with torch.no_grad():
        want = stock(ids()).logits[:, -1:]
        close(swapped(ids()).logits[:, -1:], want, 1e-5)
        close(token(swapped), want, 1e-5)
        if tuple(map(int, T.__version__.split(".")[:2])) < (5, 24):
            assert token(stock).shape != want.shape
        else:
            close(token(stock), want, 1e-5)


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_several_tokens_behind_a_cache(name):
    """Mamba-2 goes on from the state. Mamba-1's mixer hands its scan none, and starts from zero: ours computes what it does."""
    stock = model(name).eval()
    swapped = twin(stock)
    both = ids(2, 12)
    with torch.no_grad():
        whole = swapped(both).logits[:, 8:]

        def parts(m):
            past = m(both[:, :8], use_cache=True).cache_params
            return m(both[:, 8:], cache_params=past, use_cache=True).logits

        close(parts(swapped), parts(stock), 1e-5)
        assert (apart(parts(swapped), whole) < 1e-5) == (name == "mamba2")


# ---- other ways to the package ----------------------------------------------------------------------------------------

SEVEN = ("causal_conv1d_fn", "causal_conv1d_update", "selective_scan_fn", "selective_state_update", "mamba_inner_fn",
         "mamba_chunk_scan_combined", "mamba_split_conv1d_scan_combined")  # fmt: skip


@pytest.fixture
def by_kernels(monkeypatch):
    """Python's `kernels` swaps transformers' functions, for every model of the process, by LOCAL_KERNELS; and back."""
    place = packages_folder() / "mamba/build" / package("mamba").variant
    monkeypatch.setenv("LOCAL_KERNELS", f"kernels-community/mamba-ssm={place}")
    functions = []

    def swap(m, mode):
        functions.extend(f for module in m.modules() for f in getattr(module, "_kernel_funcs", {}).values())
        layer = lambda name: kernels.LayerRepository("kernels-community/mamba-ssm", layer_name=name, revision="local")
        device = "cuda" if ON_GPU else "cpu"
        with kernels.use_kernel_mapping({name: {device: layer(name)} for name in SEVEN}, inherit_mapping=False):
            kernels.kernelize(m, mode=mode, device=device)
        return m

    yield swap
    for function in functions:
        function.__dict__.pop("forward", None)


def step(m, **given):
    out = m(**given)
    return out.logits.detach(), gradients(m, out.loss)


@pytest.mark.filterwarnings("ignore:\\s*No kernel mapping found")
@pytest.mark.parametrize("name", ["mamba", "falcon_mamba", "zamba2", "bamba", "nemotron_h", "falcon_h1", "lfm2"])
def test_by_local_kernels(name, by_kernels):
    m = model(name)
    given = dict(input_ids=ids(), labels=ids(), use_cache=False)  # with a cache most models go through the single functions
    want, gradient = step(m, **given)
    prompt = dict(input_ids=ids(), attention_mask=torch.ones_like(ids()))
    written = generated(m.eval(), **prompt)
    by_kernels(m.train(), kernels.Mode.TRAINING)
    with Calls() as calls:
        got, mine = step(m, **given)
        close(generated(m.eval(), **prompt), written, 1e-5)
    if name == "bamba":  # its norm is over the whole width, the kernel's over each of the two groups
        assert apart(got, want) > 1e-3
    else:
        close(got, want, 1e-5)
        same_gradients(mine, gradient, 1e-4)
    scan, count = scan_of(name)
    again = 0 if scan is None else count  # the convolution, in backward
    made = {"causal_conv1d": 2 * count + again, "causal_conv1d_bwd": count, "causal_conv1d_update": 3 * count}
    if scan:
        made |= dict.fromkeys(NAMES[scan].values(), count) | {"selective_state_update": 3 * count}
    if scan == "ssd" and name != "falcon_h1":  # which has the gate alone
        made |= {"gated_rms_norm_fwd": count, "gated_rms_norm_bwd": count}
    assert ours(calls.made) == made


@pytest.mark.filterwarnings("ignore:\\s*No kernel mapping found")
def test_padding_in_front_reaches_the_states_of_the_whole_step(by_kernels):
    """mamba_inner_fn is not told of it, neither ours nor the Hub's: why kernelize() leaves that function alone."""
    m = model("mamba")
    mask = torch.ones_like(ids())
    mask[1, :3] = 0
    given = dict(input_ids=ids(), labels=ids().masked_fill(mask == 0, -100), attention_mask=mask)
    want, _ = step(m, **given)
    close(step(twin(m), **given)[0], want, 1e-5)
    assert apart(step(by_kernels(m, kernels.Mode.TRAINING), **given)[0][1, 3:], want[1, 3:]) > 5e-5  # they agree to 1e-5


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_compiled_in_one_graph(name):
    swapped = model(name).eval()
    del swapped.backbone.layers[1:]
    hotswap.kernelize(swapped)
    torch._dynamo.reset()
    compiled = torch.compile(swapped, fullgraph=True, backend="aot_eager")
    with torch.no_grad(), Calls() as calls:
        got = compiled(ids(), use_cache=False).logits
    assert ours(calls.made)
    close(got, swapped(ids(), use_cache=False).logits, 1e-6)
    swapped.train()
    given = dict(input_ids=ids(), labels=ids(), use_cache=False)
    mine = gradients(swapped, compiled(**given).loss)
    same_gradients(mine, gradients(swapped, swapped(**given).loss), 1e-6)


def test_functions_for_models_of_ones_own():
    from hotswap.mamba import causal_conv1d_fn, mamba_chunk_scan_combined, selective_scan_fn

    x, weight = torch.randn(2, 8, 5, requires_grad=True), torch.randn(8, 4)
    y, final = causal_conv1d_fn(x, weight, activation="silu", return_final_states=True)
    assert torch.equal(final, x[:, :, 2:])
    A = -torch.rand(8, 4)
    out, last = selective_scan_fn(y, y, A, y[:, :4], y[:, 4:], delta_softplus=True, return_last_state=True)
    (out.sum() + last.sum()).backward()
    assert x.grad.abs().sum() > 0
    heads = torch.randn(1, 6, 2, 4)
    assert mamba_chunk_scan_combined(heads, heads[..., 0], -torch.rand(2), heads, heads, 4).shape == heads.shape
    with pytest.raises(AttributeError, match="no attribute 'mamba_fn'"):
        import hotswap.mamba

        hotswap.mamba.mamba_fn


def test_layers_on_a_gpu_stay_stock_where_the_package_is_for_the_cpu_alone(monkeypatch):
    m = model("mamba")
    if "-cpu-" not in package("mamba").variant:
        pytest.skip("the package has GPU kernels here")
    monkeypatch.setattr(type(m.backbone.layers[0].mixer), "parameters", lambda self: iter([OnGpu()]))
    hotswap.kernelize(m)
    rows = functions(m)
    assert {(row.package, row.why) for row in rows} == {(None, "the package mamba has kernels for the CPU alone")}
    with pytest.raises(RuntimeError, match=r"got none for backbone.layers.0.mixer \(MambaMixer\)"):
        hotswap.kernelize(m, strict=True)


class OnGpu:
    device = torch.device("cuda")


def test_the_function_that_is_asked_is_the_models_own(monkeypatch):
    """transformers takes one of an installed package in its place, which may not run on the CPU."""
    import sys
    from types import ModuleType

    from hotswap.matchers.mixers import _reference
    from transformers.integrations import use_kernel_func_from_hub_with_fallback

    installed = ModuleType("installed")
    installed.causal_conv1d_fn = lambda hidden_states, weight: 1 / 0
    monkeypatch.setitem(sys.modules, "installed", installed)

    def own(hidden_states, weight):
        return "own"

    function = use_kernel_func_from_hub_with_fallback("causal_conv1d_fn", "installed")(own)
    with pytest.raises(ZeroDivisionError):
        function(None, None)
    assert _reference(function) is own


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_at_the_size_of_a_published_model(kind):
    """mamba-130m's and mamba2-130m's widths and vocabulary, random weights: all layers with HOTSWAP_PYTHON_FULL=1."""
    layers = 24 if os.environ.get("HOTSWAP_PYTHON_FULL") == "1" else 2
    # 24 layers of Mamba make of a rounding what both sides are from float64: ours 3.1e-4, stock 2.9e-4, gradients 1.7e-3 and 1.6e-3
    limit, of_gradients = (1e-3, 5e-3) if layers == 24 else (1e-5, 1e-4)
    sizes = dict(vocab_size=50280, hidden_size=768, num_hidden_layers=layers)
    torch.manual_seed(0)
    if kind == "mamba":
        stock = T.MambaForCausalLM(T.MambaConfig(**sizes, state_size=16))
    else:
        stock = T.Mamba2ForCausalLM(T.Mamba2Config(**sizes, num_heads=24, head_dim=64, state_size=128, n_groups=1, chunk_size=256))
    swapped, given = twin(stock), ids(1, 65) * 500
    data = dict(input_ids=given, labels=given)
    with Calls() as calls:
        got = swapped(**data)
        mine = gradients(swapped, got.loss)
    scan = NAMES["scan" if kind == "mamba" else "ssd"]
    assert ours(calls.made)[scan["forward"]] == ours(calls.made)[scan["backward"]] == layers
    want = stock(**data)
    close(got.logits, want.logits, limit)
    close(got.loss, want.loss, limit)
    same_gradients(mine, gradients(stock, want.loss), of_gradients)
    close(generated(swapped.eval(), input_ids=given), generated(stock.eval(), input_ids=given), limit)
