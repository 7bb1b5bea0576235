"""A GGUF file as a Hugging Face folder, by transformers itself: gguf_folder.py FILE.gguf FOLDER

So that both sides of bench/speed.py read the same weights (bfloat16), and neither reads what the other wrote.
"""

import argparse
from pathlib import Path

import torch
import transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="FILE.gguf")
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    file, folder = args.file, args.folder
    transformers.logging.disable_progress_bar()
    read = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    # What was read is marked as quantised, and refuses to be saved: its weights move into a model that is not.
    config = read.config.to_dict()
    config.pop("quantization_config", None)
    model = type(read)(type(read.config).from_dict(config))
    model.load_state_dict(read.state_dict())
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(folder)


if __name__ == "__main__":
    main()
