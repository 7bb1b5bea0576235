"""llama.cpp's server on a CPU, as PyPI's package xllamacpp has it; benchmarks run ours beside it."""

from pathlib import Path


def server(gguf: Path, threads: int, slots: int, context: int):
    """It lives as long as the object. context: tokens of all slots in total."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.n_ctx, params.n_parallel, params.n_gpu_layers = context, slots, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(params)
