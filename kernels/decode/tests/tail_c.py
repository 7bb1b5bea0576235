"""The layer in three launches against five, through ctypes: parts a, c, d; exp.so of tail_c.cu and bench_cuda.py beside it."""
import ctypes, statistics, sys, time
import torch
sys.path.insert(0, ".")
import bench_cuda as B
lib = ctypes.CDLL("./exp.so")
lib.run_layer.restype = ctypes.c_char_p
SM = torch.cuda.get_device_properties(0).multi_processor_count

class Run:
    def __init__(self, s, layers, rows, context):
        self.s, self.rows = s, rows
        def e(w): return torch.empty(rows, w, device="cuda", dtype=torch.bfloat16)
        self.qkv, self.att, self.h, self.gated = e((s.heads + 2*s.kv_heads)*s.dim), e(s.heads*s.dim), e(s.hidden), e(s.ffn)
        self.outs = [e(s.hidden) for _ in range(2)]
        self.parts = torch.full((s.heads*8*s.dim,), float("nan"), device="cuda")
        self.stats = torch.full((s.heads*8*2,), float("nan"), device="cuda")
        self.layers = layers
    def call(self, l, x, out, cos, sin, pos, mode, pieces, flight, splits, stamps=None):
        s = self.s
        k, v = l.keys.transpose(1, 2) if False else l.keys, l.values
        ts = [x, l.norm, l.post_norm, l.q, l.k, l.v, l.o, l.gate, l.up, l.down, *l.head_norms, cos, sin, k, v, pos, self.qkv, self.att, self.h, self.gated, out, self.parts, self.stats, stamps]
        p = (ctypes.c_void_p*len(ts))(*[t.data_ptr() if t is not None else None for t in ts])
        n = (ctypes.c_longlong*10)(self.rows, s.hidden, s.heads, s.kv_heads, s.dim, s.ffn, k.shape[1], k.stride(0), k.stride(1), k.stride(2))
        st = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        err = lib.run_layer(p, n, mode, pieces, flight, splits, st)
        if err: raise RuntimeError(err.decode())
        return out

def setup(model, rows, context, nlayers=None):
    s = B.MODELS[model]
    torch.manual_seed(0)
    layers = [B.Layer(s, rows, context) for _ in range(nlayers or s.layers)]
    x = torch.randn(rows, 1, s.hidden, device="cuda").bfloat16()
    angle = torch.randn(1, 1, s.dim // 2, device="cuda").repeat(1, 1, 2)
    return s, layers, x, angle.cos().bfloat16(), angle.sin().bfloat16(), torch.tensor([context], device="cuda")

def graph_of(r, x, cos, sin, pos, mode, pieces, flight, splits, stamps=None):
    def step():
        y = x
        for i, l in enumerate(r.layers):
            m = mode & ~4 if i == 0 else mode
            y = r.call(l, y, r.outs[i % 2], cos, sin, pos, m, pieces, flight, splits, stamps[i] if stamps is not None else None)
        return y
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream): y = step()
    stream.synchronize()
    eager = y.clone()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g, stream=stream): y = step()
    for t in r.outs: t.fill_(float("nan"))
    g.replay(); torch.cuda.synchronize()
    same = torch.equal(y, eager)
    return g, y, same

def timed(g, n=25):
    ts = []
    for _ in range(n):
        a, b = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        a.record(); g.replay(); b.record(); b.synchronize(); ts.append(a.elapsed_time(b)*1e3)
    return statistics.median(ts[5:])

def check(r, s, x, cos, sin, pos, context, mode, *knobs):
    l = r.layers[0]
    want = l.exact(s, x, cos, sin, context)
    for t in (r.qkv, r.att, r.h, r.gated, *r.outs): t.fill_(float("nan"))
    kb = l.keys.clone()
    l.keys[:, context].zero_()
    out = r.call(l, x, r.outs[0], cos, sin, pos, mode, *knobs)
    torch.cuda.synchronize()
    e = float((out.double().view_as(want) - want).norm() / want.norm())
    first = out.clone()
    bits = all(torch.equal(r.call(l, x, r.outs[1], cos, sin, pos, mode, *knobs), first) for _ in range(5))
    new = l.keys[:, context].float()
    return e, bits, float((r.kref - new).norm()/r.kref.norm()) if hasattr(r, "kref") else new

NAMES = {0: "old", 8: "plain", 1: "coop", 2: "pdl", 6: "pdl+early", 3: "coop+pdl", 7: "coop+pdl+early"}
NAMES |= {m + 16: n + "+told" for m, n in NAMES.items()}
def one(model, rows, context, configs, nlayers=None):
    s, layers, x, cos, sin, pos = setup(model, rows, context, nlayers)
    r = Run(s, layers, rows, context)
    r.kref = check(r, s, x, cos, sin, pos, context, 0, 0, 0, 0)[2]
    print(f"== {model} rows {rows} context {context}, {len(layers)} layers", flush=True)
    base_y = None
    graphs = []
    for c in configs:
        try:
            e, bits, ke = check(r, s, x, cos, sin, pos, context, *c)
            g, y, same = graph_of(r, x, cos, sin, pos, *c)
            t = timed(g)
            wb = 2*sum(t_.numel() for t_ in (layers[0].q, layers[0].k, layers[0].v, layers[0].o, layers[0].gate, layers[0].up, layers[0].down)) + 4*rows*context*s.kv_heads*s.dim
            print(f"{NAMES[c[0]]:20} pieces {c[1]:2} flight {c[2]:2} splits {c[3]}: {t:8.1f} us, {t/len(layers):6.2f} a layer, {wb*len(layers)/t/1e6:5.2f} TB/s  err {e:.1e} key {ke:.1e} bits {bits} graph=eager {same}", flush=True)
            graphs.append((c, g, t))
        except Exception as ex:
            print(NAMES[c[0]], c, "FAILED", str(ex)[:150], flush=True)
            if "illegal" in str(ex) or "unspecified" in str(ex): raise
    # A B A B
    if len(graphs) >= 2:
        best = min((g for g in graphs if g[0][0] != 0), key=lambda t: t[2]); old = [g for g in graphs if g[0][0] == 0]
        if old: print("   in turns, old/best:", *[f"{timed(old[0][1], 15):.1f}/{timed(best[1], 15):.1f}" for _ in range(3)], "best", best[0], flush=True)
        return graphs

PH = [(0,"start"),(1,"waited"),(2,"attended in"),(3,"o done"),(4,"barrier1"),(6,"h normed"),(7,"gate/up done"),(8,"barrier2"),(10,"gated in"),(11,"down done")]
def stamps(model, rows, context, c, nlayers=None):
    s, layers, x, cos, sin, pos = setup(model, rows, context, nlayers)
    r = Run(s, layers, rows, context)
    st = torch.zeros(len(layers), SM, 32, dtype=torch.int64, device="cuda")
    g, y, same = graph_of(r, x, cos, sin, pos, *c, stamps=st)
    acc = None
    for _ in range(5):
        g.replay(); torch.cuda.synchronize()
        t = st.cpu().double()
        n = len(layers)
        rows_ = []
        for i in range(2, n):
            prev_end = t[i-1, :, 11].max()
            rows_.append(torch.stack([torch.stack([t[i, :, k].min() - prev_end, t[i, :, k].mean() - prev_end, t[i, :, k].max() - prev_end]) for k, _ in PH]))
        m = torch.stack(rows_).median(0).values
        acc = m if acc is None else acc + m
    acc /= 5
    print(f"-- stamps {model} rows {rows} {NAMES[c[0]]} {c[1:]}: ns after the last block's end of the layer before: min mean max")
    for (k, name), v in zip(PH, acc.tolist()): print(f"   {name:16} {v[0]:8.0f} {v[1]:8.0f} {v[2]:8.0f}")
    sys.stdout.flush()

if __name__ == "__main__":
    part = sys.argv[1]
    if part == "a":
        one("Qwen3-0.6B", 1, 576, [(0,0,0,0)] + [(3,0,f,0) for f in (1,2,3,4,8)] + [(2,0,4,0),(1,0,4,0),(3,6,4,0),(3,10,4,0),(3,10,10,0)])
        for f in (2, 4): stamps("Qwen3-0.6B", 1, 576, (3,0,f,0))
    if part == "c":
        for rows in (2, 4, 8, 16):
            one("Qwen3-0.6B", rows, 576, [(0,0,0,0)] + [(3,0,f,0) for f in (2,4)])
        stamps("Qwen3-0.6B", 16, 576, (3,0,4,0))
        one("Qwen3-0.6B", 16, 0, [(0,0,0,0),(3,0,4,0)])
    if part == "d":
        for rows in (1, 4): one("Llama-8B", rows, 576, [(0,0,0,0)] + [(3,0,f,0) for f in (2,3,4)], 8)
        stamps("Llama-8B", 1, 576, (3,0,4,0), 8)
        one("Qwen3-0.6B", 1, 4096, [(0,0,0,0),(3,0,4,0)])
