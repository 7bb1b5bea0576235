"""What the readers that quantised models are written for make of them.

    python quantize_readers.py OUT RESULT...

Each RESULT is a folder that transformers loads, or a .gguf file. Writes OUT/<name>.safetensors: of a folder `logits` for
the input_ids of OUT/input_ids.safetensors; of a file every tensor by its name, as llama.cpp's Python package
dequantises it, and `logits` where transformers reads such files of that architecture.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TQDM_DISABLE"] = "1"  # what is printed is a failed test's message

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file


def logits(folder, ids, **options):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu", **options).eval()
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits.float().contiguous()


def tensors(file):
    for tensor in gguf.GGUFReader(file).tensors:
        shape = [int(extent) for extent in reversed(tensor.shape)]
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        yield tensor.name, torch.from_numpy(values.reshape(shape).copy())


def main():
    transformers.logging.set_verbosity_error()
    out = Path(sys.argv[1])
    ids = load_file(out / "input_ids.safetensors")["input_ids"]
    for result in map(Path, sys.argv[2:]):
        if result.suffix == ".gguf":
            found = dict(tensors(result)) | {"logits": logits(result.parent, ids, gguf_file=result.name)}
        else:
            found = {"logits": logits(result, ids)}
        save_file(found, out / f"{result.name}.safetensors")


if __name__ == "__main__":
    main()
