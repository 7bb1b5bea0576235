"""Ways of use beyond a plain step, each stock beside swapped: on the CPU as far as one means something there, with
HOTSWAP_TEST_DEVICE=cuda on a GPU, and where there are two of them, on both."""

import contextlib
import copy
import io
import threading

import pytest
import torch
from tiny import batch, model, pattern

import hotswap

DEVICE = torch.get_default_device()
ON_GPU = DEVICE.type == "cuda"
GPUS = torch.cuda.device_count() if ON_GPU else 0
SIZES = dict(hidden_size=128, intermediate_size=96, head_dim=32)
OPTIONS = {"default": {}, "no logits": dict(fused_linear_cross_entropy=True), "attention": dict(attention=True)}
FLOAT, SHORT = 2e-4, 4e-2  # of the norm: sums in another order; numbers of 8 bits, through two layers and back


def step(m, data=None, around=contextlib.nullcontext, scale=1.0):
    """Loss and gradients of one step."""
    m.zero_grad(set_to_none=True)
    with around():
        loss = m(**(batch() if data is None else data), use_cache=False).loss
    (loss * scale).backward()
    return [loss.detach(), *(p.grad.detach() / scale for p in m.parameters() if p.grad is not None)]


def logits(m):
    with torch.no_grad():
        return [m(input_ids=batch()["input_ids"], use_cache=False).logits]


def bfloat16():
    return torch.autocast(DEVICE.type, torch.bfloat16)


# ---- the ways: each gives numbers that stock and swapped must agree in ---------------------------------------------


def two_steps_of_adamw(m):
    m.train()
    optimizer = torch.optim.AdamW(m.parameters(), lr=1e-3)
    losses = []
    for seed in range(3):
        losses.append(step(m, pattern(seed=seed))[0])
        optimizer.step()
    return losses


def accumulated(m):
    m.zero_grad(set_to_none=True)
    for seed in range(2):
        m(**batch(seed=seed)).loss.backward()
    return [p.grad for p in m.parameters()]


def checkpointed(reentrant):
    def way(m):
        m.train().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
        m.enable_input_require_grads()
        return step(m)

    return way


def saved_on_the_host(m):
    return step(m, around=torch.autograd.graph.save_on_cpu)


def with_a_scaler(m):
    scaler = torch.amp.GradScaler(DEVICE.type, init_scale=256.0)
    loss = m(**batch()).loss
    scaler.scale(loss).backward()
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    scaler.unscale_(optimizer)
    grads = [p.grad.clone() for p in m.parameters()]
    scaler.step(optimizer)
    scaler.update()
    return [loss.detach(), *grads, *logits(m)]


def compiled(m):
    return step(torch.compile(m, backend="aot_eager"))


def in_inference_mode(m):
    with torch.inference_mode():
        return [m(input_ids=batch()["input_ids"]).logits.clone()]


def back_and_forth(m):
    want = logits(m)
    m.bfloat16()
    short = logits(m)
    m.float().to("cpu")
    m.to(DEVICE)
    return [*want, *short, *logits(m)]


def copied(m):
    other = copy.deepcopy(m)
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.1)
    return [*step(m), *step(other)]


def loaded(m):
    buffer = io.BytesIO()
    torch.save(m.state_dict(), buffer)
    with torch.no_grad():
        for p in m.parameters():
            p.zero_()
    m.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), map_location=DEVICE))
    return step(m)


def called_with_other_weights(m):
    weights = {name: p.detach() * 1.1 for name, p in m.named_parameters()}
    return [torch.func.functional_call(m, weights, kwargs=dict(input_ids=batch()["input_ids"], use_cache=False)).logits.detach()]


def adapted(m):
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    made = peft.get_peft_model(m, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "gate_proj", "down_proj"]))
    for name, p in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.1)
    return step(made.train())


def twice_through_one_graph(m):
    m.zero_grad(set_to_none=True)
    loss = m(**batch()).loss
    loss.backward(retain_graph=True)
    loss.backward()
    return [p.grad for p in m.parameters()]


def turned_on_and_off(m):
    return [*step(m.train()), *logits(m.eval()), *step(m.train())]


def in_two_threads(m):
    found = [None, None]

    def run(i):
        torch.set_default_device(DEVICE)  # of each thread its own
        with torch.no_grad():
            for _ in range(5):
                found[i] = m(input_ids=batch(seed=i)["input_ids"], use_cache=False).logits

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def padded(m):
    ids, mask = batch()["input_ids"], torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    with torch.no_grad():
        out = m(input_ids=ids, attention_mask=mask, use_cache=False).logits
    return [out[mask.bool()]]


def generated(m):
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    return [m.generate(batch()["input_ids"], attention_mask=mask, max_new_tokens=6, do_sample=False, pad_token_id=0).float()]


def on_a_stream(m):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = step(m)
    torch.cuda.current_stream().wait_stream(stream)
    return found


def captured(m):
    """A training step in a CUDA graph, replayed with other ids."""
    data = batch()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(m, data)
    torch.cuda.current_stream().wait_stream(stream)
    m.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = m(**data, use_cache=False).loss
        loss.backward()
    for name, value in batch(seed=7).items():
        data[name].copy_(value)
    graph.replay()
    return [loss.detach().clone(), *(p.grad.clone() for p in m.parameters() if p.grad is not None)]


def captured_with_padding(m):
    ids, mask = batch()["input_ids"], torch.ones(2, 12, dtype=torch.long)
    with torch.no_grad():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                m(input_ids=ids, attention_mask=mask, use_cache=False)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = m(input_ids=ids, attention_mask=mask, use_cache=False).logits
    mask[0, :5] = 0  # padding that capture has not seen
    graph.replay()
    return [out[mask.bool()]]


def offloaded(m):
    accelerate = pytest.importorskip("accelerate")
    return logits(accelerate.cpu_offload(m, execution_device=DEVICE))


def over_two_gpus(m):
    accelerate = pytest.importorskip("accelerate")
    places = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": 1, "model.norm": 1, "model.rotary_emb": 0, "lm_head": 1}
    m = accelerate.dispatch_model(m, places)
    return [t.to(DEVICE) for t in [*step(m), *logits(m)]]


def on_the_other_gpu(m):
    with torch.cuda.device(0):
        m = m.to("cuda:1")
        ids = batch()["input_ids"].to("cuda:1")
        return [t.to(DEVICE) for t in step(m, dict(input_ids=ids, labels=ids))]


WAYS = {  # name: (the way, how far apart, the type of the weights, GPUs that it wants)
    "optimizer": (two_steps_of_adamw, FLOAT, torch.float32, 0),
    "accumulation": (accumulated, FLOAT, torch.float32, 0),
    "checkpointing, reentrant": (checkpointed(True), FLOAT, torch.float32, 0),
    "checkpointing": (checkpointed(False), FLOAT, torch.float32, 0),
    "saved on the host": (saved_on_the_host, FLOAT, torch.float32, 0),
    "autocast": (lambda m: step(m, around=bfloat16), SHORT, torch.float32, 0),
    "bfloat16": (step, SHORT, torch.bfloat16, 0),
    "GradScaler": (with_a_scaler, FLOAT, torch.float32, 0),
    "torch.compile": (compiled, FLOAT, torch.float32, 1),
    "inference mode": (in_inference_mode, FLOAT, torch.float32, 0),
    "moves between devices and types": (back_and_forth, SHORT, torch.float32, 0),
    "copies": (copied, FLOAT, torch.float32, 0),
    "state dict": (loaded, FLOAT, torch.float32, 0),
    "functional call": (called_with_other_weights, FLOAT, torch.float32, 0),
    "LoRA": (adapted, FLOAT, torch.float32, 0),
    "two backwards": (twice_through_one_graph, FLOAT, torch.float32, 0),
    "train and eval": (turned_on_and_off, FLOAT, torch.float32, 0),
    "threads": (in_two_threads, FLOAT, torch.float32, 0),
    "padding": (padded, FLOAT, torch.float32, 0),
    "padding, bfloat16": (padded, SHORT, torch.bfloat16, 0),
    "generate": (generated, 0.0, torch.float32, 0),
    "stream": (on_a_stream, FLOAT, torch.float32, 1),
    "captured step": (captured, FLOAT, torch.float32, 1),
    "captured step, bfloat16": (captured, SHORT, torch.bfloat16, 1),
    "captured, padding": (captured_with_padding, FLOAT, torch.float32, 1),
    "captured, padding, bfloat16": (captured_with_padding, SHORT, torch.bfloat16, 1),
    "offload": (offloaded, FLOAT, torch.float32, 1),
    "two GPUs": (over_two_gpus, FLOAT, torch.float32, 2),
    "the other GPU": (on_the_other_gpu, FLOAT, torch.float32, 2),
}


def apart(got, want) -> float:
    assert len(got) == len(want) and all(g.shape == w.shape for g, w in zip(got, want))
    got, want = (torch.cat([t.flatten().double() for t in part]) for part in (got, want))
    return float((got - want).norm() / want.norm())


def stock_of(dtype, family="llama", **more):
    made = model(family, **SIZES, **more)
    made.set_attn_implementation("sdpa")
    return made.to(dtype)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("name", WAYS)
def test_a_way_of_use(name, options):
    way, limit, dtype, gpus = WAYS[name]
    if gpus > GPUS:
        pytest.skip(f"wants {gpus} GPUs")
    stock = stock_of(dtype)
    swapped = hotswap.kernelize(copy.deepcopy(stock), **OPTIONS[options])
    torch.compiler.reset()
    assert apart(way(swapped), way(stock)) <= limit


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe"])
@pytest.mark.parametrize("name", ["autocast", "bfloat16", "padding"])
def test_norms_that_leave_queries_in_float32(family, name):
    way, limit, dtype, _ = WAYS[name]
    more = dict(num_experts=2, num_experts_per_tok=2, output_router_logits=False) if family == "qwen3_moe" else {}
    stock = stock_of(dtype, family, **more)
    assert apart(way(hotswap.kernelize(copy.deepcopy(stock), attention=True)), way(stock)) <= limit


@pytest.mark.parametrize("options", OPTIONS)
def test_deterministic_runs_have_the_same_bits(options, monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    swapped = hotswap.kernelize(stock_of(torch.bfloat16), **OPTIONS[options])
    torch.use_deterministic_algorithms(True)
    try:
        one, two = ([t.clone() for t in step(swapped)] for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.skipif(not ON_GPU, reason="a CPU waits for nobody")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_forward_with_padding_does_not_wait_for_the_device(dtype):
    """torch's own asks whether all of a mask is ones."""
    swapped = hotswap.kernelize(stock_of(dtype), attention=True).train()
    ids, mask = batch()["input_ids"], torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    places = torch.arange(12).expand(2, -1)
    given = dict(input_ids=ids, labels=ids, attention_mask=mask, position_ids=places, use_cache=False)
    swapped(**given).loss.backward()  # allocations, and classes that are asked
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        swapped(**given).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.skipif(not ON_GPU, reason="every type has kernels on the CPU")
def test_the_report_says_what_float32_runs():
    swapped = hotswap.kernelize(stock_of(torch.float32), attention=True)
    assert "float32 on cuda outside of autocast by torch's" in str(hotswap.report(swapped))
    assert "outside of autocast" not in str(hotswap.report(swapped.bfloat16()))
