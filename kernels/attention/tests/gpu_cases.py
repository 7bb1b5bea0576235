"""This package on a GPU: what tests of all packages ask of it (kernels/common/tests/test_cuda.py says what each is)."""

# What else reads much does it by TMA, which is no load in the machine code.
WIDE = r"decode_kernel<.*BFloat16|backward_(prepare|finish)_kernel<.*BFloat16"

# More than a thread's registers hold: backward with a softcap keeps the scores beside their tanh, the mma kernels of heads of 64
# to 192 two sums or 32 rows a warp, windows and heads of 64 each warpgroup's first tile. By a few numbers, which stay in L1.
SPILLS = {
    r"backward_kernel<.*, (64|128), (true|false), true>": 96,
    r"mma_forward_kernel<.*, (128|192), 128, 4, 2,": 72,
    r"mma_backward_kernel<.*, (64, 64|128, 128|192, 128), 4,": 96,
    r"\bforward_kernel<.*ForwardTraits<.*, 64, 64, 128, 3, true, true>": 16,
}

# sinks, alibi_slopes, scale, causal, window_left, window_right, chunk, softcap
CAUSAL = (None, None, 0.125, True, -1, -1, 0, 0.0)
WINDOW = (None, None, 0.125, True, 100, -1, 0, 30.0)


def cases(ops, random, names):
    import torch  # here: what reads WIDE and SPILLS needs none

    q, k, v = random(2, 333, 8, 64), random(2, 333, 2, 64), random(2, 333, 2, 64)
    dout = random(2, 333, 8, 64)
    wide = [random(1, 200, 4, 128) for _ in range(3)]
    widest = [random(1, 200, 4, 256) for _ in range(4)]
    latent, latents, many = random(2, 1, 16, 576), random(2, 333, 1, 576), random(2, 1, 72, 576)
    slopes = (None, random(4).float().abs(), 0.0625, True, -1, -1, 64, 0.0)  # and chunks
    sinks = random(8)
    sunk = (sinks, *CAUSAL[1:])
    cu = torch.tensor([0, 100, 100, 333, 600], dtype=torch.int32, device=q.device)
    packed = [t.flatten(0, 1) for t in (q, k, v)]
    lengths = (cu, cu, None, 300, 300)
    one, new = random(2, 1, 8, 64), [random(2, 1, 2, 64) for _ in range(2)]
    held = torch.tensor([332, 17], dtype=torch.int32, device=q.device)

    def decode():
        caches = k.clone(), v.clone()
        return *ops.attention_decode(one, *caches, *new, held, None, None, *CAUSAL, 0), *caches

    every = {
        "attention": lambda: ops.attention(q, k, v, *CAUSAL),
        "attention, sinks": lambda: ops.attention(q, k, v, *sunk),
        "attention, wide": lambda: ops.attention(*wide, *WINDOW),
        "attention, widest": lambda: ops.attention(*widest[:3], *WINDOW),
        "attention, slopes and chunks": lambda: ops.attention(*wide, *slopes),
        "attention_fwd": lambda: ops.attention_fwd(q, k, v, *CAUSAL),
        "attention_bwd": lambda: ops.attention_bwd(dout, q, k, v, *ops.attention_fwd(q, k, v, *sunk), None, *sunk, True),
        "attention_bwd, widest": lambda: ops.attention_bwd(
            widest[3], *widest[:3], *ops.attention_fwd(*widest[:3], *slopes), None, *slopes, False
        ),
        "attention_varlen": lambda: ops.attention_varlen(*packed, *lengths, *CAUSAL),
        "attention_varlen_fwd": lambda: ops.attention_varlen_fwd(*packed, *lengths, *CAUSAL),
        "attention_varlen_bwd": lambda: ops.attention_varlen_bwd(
            dout.flatten(0, 1), *packed, *ops.attention_varlen_fwd(*packed, *lengths, *CAUSAL), None, *lengths, *CAUSAL, True
        ),
        "attention_decode": decode,
        "attention_decode, latent": lambda: ops.attention_decode(
            latent, latents, latents[..., :512], None, None, held, None, None, *CAUSAL, 0
        ),
        "attention_decode, latent of many heads": lambda: ops.attention_decode(
            many, latents, latents[..., :512], None, None, held, None, None, *CAUSAL, 0
        ),
    }
    return {name: call for name, call in every.items() if name.split(",")[0] in names}


def large(ops, x, random):
    dim, heads = 64, 8
    rows = x.numel() // (heads * dim)
    q, k, v = x.view(-1)[: rows * heads * dim].view(rows, heads, dim), random(1, 64, heads, dim), random(1, 64, heads, dim)
    everything = (None, None, 0.125, False, -1, -1, 0, 0.0)  # a row's place does not matter
    return {"attention": (q, lambda t: ops.attention(t.unsqueeze(0), k, v, *everything)[0])}
