"""The GPU forward, called without torch's dispatcher: for tests and benchmarks of the kernels alone.

    nvcc -gencode=arch=compute_90a,code=sm_90a -O3 -std=c++20 -shared -Xcompiler -fPIC -I. -o attention.so \
        kernels/attention/*.cu kernels/attention/tests/forward_c.cu
"""

import ctypes

import torch

NO_LIMIT = -1


class Library:
    def __init__(self, path):
        self.function = ctypes.CDLL(str(path)).attention_forward
        self.function.restype = ctypes.c_char_p
        self.counter = torch.full((1,), 12345, dtype=torch.int32, device="cuda")

    def forward(self, q, k, v, *, scale=None, window=(NO_LIMIT, NO_LIMIT), softcap=0.0, sinks=None, out=None, lse=None):
        """q [batch, query_rows, heads, dim], k, v [batch, key_rows, key_heads, dim]. Causal: window=(NO_LIMIT, 0)."""
        batch, rows, heads, dim = q.shape
        if out is None:
            out = torch.empty(batch, rows, heads, v.shape[3], dtype=q.dtype, device=q.device)
        pointers = [t.data_ptr() if t is not None else None for t in (out, lse, q, k, v, sinks)]
        strides = [t.stride(i) for t in (q, k, v) for i in (0, 1, 2)]
        numbers = [*strides, batch, rows, k.shape[1], heads, k.shape[2], dim, v.shape[3], *window,
                   {torch.bfloat16: 0, torch.float16: 1}[q.dtype]]
        scales = [dim**-0.5 if scale is None else scale, softcap]
        error = self.function(
            (ctypes.c_void_p * len(pointers))(*pointers),
            (ctypes.c_int64 * len(numbers))(*numbers),
            (ctypes.c_float * len(scales))(*scales),
            ctypes.c_void_p(self.counter.data_ptr()),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        if error is not None:
            raise RuntimeError(error.decode())
        return out
