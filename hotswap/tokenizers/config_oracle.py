"""What transformers makes of texts with each key of a tokenizer_config.json, which tokenizers_test compares with.

    python config_oracle.py OUT

Writes OUT/<n>/tokenizer.json and tokenizer_config.json, and OUT/cases.json with a row for each:
    {"folder", "key", "texts": [{"text", "ids", "decoded": without special tokens}]}
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, logging

TEXTS = [
    "Hello  world! A test of words.",
    " hello world, test<s> Hello</s> it is<extra>a test ",
    "worldly tests , HelloHello <pad> no more .",
]
BASE = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
STRIPPED = {"lstrip": True, "rstrip": True, "normalized": False, "single_word": True, "special": True}
CHANGES = {
    "": [{}],
    "bos_token": ["world", "<pad>", {"__type": "AddedToken", "content": "<s>", **STRIPPED}],
    "eos_token": ["world", "<pad>", {"__type": "AddedToken", "content": "test", **STRIPPED}],
    "pad_token": ["<pad>", "words", {"__type": "AddedToken", "content": "<pad>", **STRIPPED}],
    "unk_token": ["<s>"],
    "cls_token": ["test"],
    "sep_token": ["world"],
    "mask_token": [{"__type": "AddedToken", "content": "world", "lstrip": True, "rstrip": False, "normalized": False, "single_word": False}],
    "additional_special_tokens": [["Hello"], ["<extra>"], ["<extra>", "test", "<s>"]],
    "extra_special_tokens": [["Hello", "<extra>"], [{"__type": "AddedToken", "content": "<s>", **STRIPPED}], {"image_token": "<extra>", "boi_token": "world"}],
    "added_tokens_decoder": [
        {"7": {"content": "world", **STRIPPED}, "3": {"content": "<extra>", "lstrip": False, "rstrip": False, "normalized": True,
                                                    "single_word": False, "special": False}},
        {"0": {"content": "<s>", **STRIPPED}},
    ],
    "split_special_tokens": [True, False],
    "add_prefix_space": [True, False],
    "add_bos_token": [True, False],
    "add_eos_token": [True],
    "clean_up_tokenization_spaces": [True, False],
    "model_max_length": [3],
    "padding_side": ["left"],
    "truncation_side": ["left"],
    "legacy": [True],
    "do_lower_case": [True],
    "spaces_between_special_tokens": [False],
    "errors": ["replace"],
    "chat_template": ["{{ bos_token }}"],
}  # fmt: skip


def trained() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"])
    made.train_from_iterator(["Hello world test words more", "Hello test world words no more hello"] * 4, trainer)
    made.add_tokens([AddedToken("<pad>", lstrip=True, normalized=False, special=False)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


def main():
    root, rows = sys.argv[1], []
    logging.set_verbosity_error()
    tokenizer = trained()
    for key, values in CHANGES.items():
        for value in values:
            folder = os.path.join(root, str(len(rows)))
            os.makedirs(folder)
            tokenizer.save(os.path.join(folder, "tokenizer.json"))
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
                json.dump({**BASE, **({key: value} if key else {})}, f)
            loaded = AutoTokenizer.from_pretrained(folder)
            ids = [loaded(text).input_ids for text in TEXTS]
            texts = [dict(text=t, ids=i, decoded=loaded.decode(i, skip_special_tokens=True)) for t, i in zip(TEXTS, ids, strict=True)]
            rows.append(dict(folder=folder, key=key, value=value, texts=texts))
    with open(os.path.join(root, "cases.json"), "w") as f:
        json.dump(rows, f)


if __name__ == "__main__":
    main()
