"""The GPU's attention, called without torch's dispatcher: for tests and benchmarks of the kernels alone.

    nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++20 -shared -Xcompiler -fPIC -I. -o attention.so \
        kernels/attention/*.cu kernels/attention/tests/attention_c.cu
"""

import ctypes
from pathlib import Path

import torch

NO_LIMIT = -1
DTYPES = {torch.bfloat16: 0, torch.float16: 1}


def captured(call):
    """call, from a CUDA graph. What it needs must be there already: a graph takes no memory of its own here."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        call()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    torch.cuda.synchronize()


class Call:
    """What goes to a C function, in the order in which attention_c.cu reads it."""

    def __init__(self, q, k, v, *, scale=None, window=(NO_LIMIT, NO_LIMIT), softcap=0.0, sinks=None, chunk=0, slopes=None,
                 starts=None, used=None):
        self.packed = starts is not None
        query_starts, key_starts = starts if self.packed else (None, None)
        rows, heads, dim = q.shape[-3:]
        batch = len(query_starts) - 1 if self.packed else q.shape[0]
        self.pointers = []
        self.numbers = [batch, rows, k.shape[-3], heads, k.shape[-2], dim, v.shape[-1], *window, chunk]
        self.numbers += [slopes.stride(0) if slopes is not None and slopes.dim() == 2 else 0, DTYPES[q.dtype]]
        self.scales = [dim**-0.5 if scale is None else scale, softcap]
        self.point(sinks, slopes, query_starts, key_starts, used)

    def point(self, *tensors):
        self.pointers += [t.data_ptr() if t is not None else None for t in tensors]

    def stride(self, *tensors):
        for t in tensors:
            self.numbers += [0, t.stride(0), t.stride(1)] if self.packed else [t.stride(0), t.stride(1), t.stride(2)]

    def arrays(self):
        return (
            (ctypes.c_void_p * len(self.pointers))(*self.pointers),
            (ctypes.c_int64 * len(self.numbers))(*self.numbers),
            (ctypes.c_float * len(self.scales))(*self.scales),
        )


class Library:
    """q [batch, query_rows, heads, dim], k, v [batch, key_rows, key_heads, dim], without batch where packed: starts is
    then (query_starts, key_starts) and used keys_used. Causal: window=(NO_LIMIT, 0)."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(Path(path).resolve()))  # a name alone would be looked for elsewhere
        for name in ("forward", "backward", "decode"):
            getattr(self.library, f"attention_{name}").restype = ctypes.c_char_p
            getattr(self.library, f"attention_{name}_bytes").restype = ctypes.c_int64
        self.space = torch.empty(0, dtype=torch.uint8, device="cuda")

    def run(self, name, call):
        arrays = call.arrays()
        size = getattr(self.library, f"attention_{name}_bytes")(*arrays)
        if self.space.numel() < size:
            self.space = torch.full((size,), 255, dtype=torch.uint8, device="cuda")  # NaN, and -1
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        error = getattr(self.library, f"attention_{name}")(*arrays, ctypes.c_void_p(self.space.data_ptr()), stream)
        if error is not None:
            raise RuntimeError(error.decode())

    def forward(self, q, k, v, *, out=None, lse=None, **options):
        call = Call(q, k, v, **options)
        if out is None:
            out = torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)
        call.point(out, lse, q, k, v)
        call.stride(q, k, v)
        self.run("forward", call)
        return out

    def backward(self, dout, q, k, v, out, lse, *, gradients, dlse=None, deterministic=False, **options):
        """gradients: dq, dk, dv, and dsinks or None."""
        call = Call(q, k, v, **options)
        call.point(*gradients, dout, q, k, v, out, lse, dlse)
        call.stride(dout, q, k, v, out)
        call.numbers.append(int(deterministic))
        self.run("backward", call)

    def decode(self, q, k_cache, v_cache, lengths, *, key_rows, new=(None, None), table=None, index=None, splits=0,
               out=None, lse=None, **options):
        """Caches [caches, rows, key_heads, dim], or [pages, page_rows, ...] with a table [batch, ...]; new: k and v."""
        call = Call(q, k_cache, v_cache, **options)
        call.numbers[2] = key_rows
        if out is None:
            out = torch.empty(*q.shape[:-1], v_cache.shape[-1], dtype=q.dtype, device=q.device)
        call.point(out, lse, q, k_cache, v_cache, *new, lengths, table, index)
        call.numbers += [new[0].shape[1] if new[0] is not None else 0, k_cache.shape[1]]
        call.numbers += [table.stride(0) if table is not None else 0, splits]
        call.stride(q, k_cache, v_cache, *(n if n is not None else q for n in new))
        self.run("decode", call)
        return out
