"""Small trained tokenizers of every kind that is served here, and what Python's `tokenizers` does with hard strings.

    python golden_tokenizers.py OUT                   all of this
    python golden_tokenizers.py OUT tokenizer.json    OUT/tokenizer_golden.json alone, of that one

Writes OUT/tokenizers/<kind>/tokenizer.json and tokenizer_golden.json, and OUT/text/license.txt, in the layout and with
the keys of the recorded files that tokenizers/golden_test.cpp also reads:
    cases       text, ids, ids_with_special, decoded, decoded_skip_special
    pairs       a, b, ids, type_ids
    offsets     text, ids, tokens, char_offsets
    long_texts  file, count, sha256_of_int32_le_ids, round_trip
They are trained on this project's licence, which does not change, so every run makes the same ones.
"""

import hashlib
import json
import random
import struct
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
VOCABULARY = 512
SPLIT = (  # as Qwen's
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# What is easy to get wrong: blanks of all kinds, what NFC changes, several code points to a character, lone marks, what
# a regex calls a letter or a number, bytes that no merge covers, special tokens with and without blanks around them.
HARD = [
    "", " ", "  ", "\n", "\r\n", "\n\n\n", " \n \n ", "\t\t\t", "   \t  \n  ", "a", "A", "  two  blanks  ", " leading",
    "trailing ", "don't", "DON'T we'LL they'Ve", "x_y __init__", "3.14159 1,000,000 12345678", "0xFF 1e-5 50%",
    "½ ² ٣ Ⅷ ๓", "Hello, wörld!", "naïve café déjà vu", "e\u0301 a\u0300\u0323\u0301 n\u0303", "\u1e9b\u0323 \ufb01 \u212b \u2126",
    "Ǆ ǅ ǆ İ ı ſ ß ẞ", "日本語のテキスト", "한국어 \u1112\u1161\u11ab", "Привет, мир", "שלום עולם", "مرحبا بالعالم",
    "ไทยน้ำ", "हिन्दी \u0958", "👋🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️", "\u200b\u200d\ufeff\u00ad", "\u00a0\u3000\u2028\u2029\u0085\u180e", "\ufffd \U0010ffff \U000e0001",
    "▁ ▁▁ a▁b", "Ġ Ċ ĉ", "<0x0A> <0xFF>", "<s>", "</s>", "a<s>b</s> c", " <s> <unk> </s> ", "<|endoftext|>",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n", "a <|im_end|> b", "<|im_end", "<think>no</think>",
    "if (x<y && y>z) { return x[0]; }  // why?", "def f(a, *b):\n    return {**a, 'k': b}\n", "https://a.b/c?d=e&f=%20g#h",
    "a\u0000b\u0007c\u007f", "ⓐⓑ ①② ㎏ ﷺ", "....!!!???---", "AAAAAAAAaaaaaaaa", "tttttthhhhhheeeee", "\"quotes\" ‘and’ “these”",
    "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION", "(except as stated in this section)",
]


def byte_level(name, normalizer, pre_tokenizer, post_processor, special):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(LICENSE.read_text().splitlines(keepends=True), trainer)
    if name == "split_nfc":
        tokenizer.add_tokens(["<think>", "</think>"])  # not special: decode(..., skip) keeps them
    return tokenizer


def sentence_piece(normalizer, pre_tokenizer):
    """As a SentencePiece model after conversion: special tokens, 256 bytes, the pieces by rank, then single characters;
    every way to put a piece together is a merge."""
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    lines = [line.strip() for line in LICENSE.read_text().splitlines()]
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 259, show_progress=False, max_token_length=8)
    tokenizer.train_from_iterator(lines, trainer)
    data = json.loads(tokenizer.to_str())
    learned = sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)
    pieces = [t for t in learned if len(t) > 1] + [t for t in learned if len(t) == 1]
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)] + pieces
    ids = {token: i for i, token in enumerate(tokens)}
    merges = []
    for piece in pieces:
        ways = [(piece[:i], piece[i:]) for i in range(1, len(piece)) if piece[:i] in ids and piece[i:] in ids]
        merges += sorted(ways, key=lambda way: (ids[way[0]], ids[way[1]]))
    data["model"] |= dict(vocab=ids, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    strip = decoders.Strip(" ", 1, 0)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return tokenizer


def make_tokenizer(kind):
    level = pre_tokenizers.ByteLevel
    chat = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    if kind == "gpt2":
        return byte_level(kind, None, level(add_prefix_space=False), processors.ByteLevel(trim_offsets=False), chat[:1])
    if kind == "digits":
        pre = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level(add_prefix_space=False)])
        return byte_level(kind, None, pre, None, chat)
    if kind == "split_nfc":
        split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
        pre = pre_tokenizers.Sequence([split, level(add_prefix_space=False, use_regex=False)])
        return byte_level(kind, normalizers.NFC(), pre, processors.ByteLevel(trim_offsets=False), chat)
    if kind == "metaspace":
        return sentence_piece(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=True))
    assert kind == "normalizers", kind
    steps = [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    return sentence_piece(normalizers.Sequence(steps + [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None)


KINDS = ["gpt2", "digits", "split_nfc", "metaspace", "normalizers"]


def hard_strings():
    lines = LICENSE.read_text().splitlines()
    chance = random.Random(0)
    mixed = ["".join(chance.choice(HARD + lines[:40]) for _ in range(chance.randint(2, 5))) for _ in range(150)]
    return HARD + lines[::4] + mixed


def golden(tokenizer, root):
    def case(text):
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text).ids
        return dict(text=text, ids=plain, ids_with_special=special,
                    decoded=tokenizer.decode(plain, skip_special_tokens=False),
                    decoded_skip_special=tokenizer.decode(special, skip_special_tokens=True))

    def pair(a, b):
        encoding = tokenizer.encode(a, b)
        return dict(a=a, b=b, ids=encoding.ids, type_ids=encoding.type_ids)

    def offsets(text):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return dict(text=text, ids=encoding.ids, tokens=encoding.tokens, char_offsets=encoding.offsets)

    def long_text(file):
        text = (root / file).read_text()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        return dict(file=file, count=len(ids), sha256_of_int32_le_ids=hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest(),
                    round_trip=tokenizer.decode(ids, skip_special_tokens=False) == text)

    return dict(
        vocab_size_with_added=tokenizer.get_vocab_size(),
        cases=[case(text) for text in hard_strings()],
        pairs=[pair("How are you?", "Fine, thanks."), pair("", "a"), pair("e\u0301 <s>", " 日本 ")],
        offsets=[offsets(text) for text in ("Hello, wörld! 👋🏽 12345\n  end", "e\u0301 a\u0300 <s> don't", "日本  語\t")],
        long_texts=[long_text("text/license.txt")],
    )


def main():
    root = Path(sys.argv[1])
    (root / "text").mkdir(parents=True)
    (root / "text/license.txt").write_bytes(LICENSE.read_bytes())
    if len(sys.argv) > 2:
        (root / "tokenizer_golden.json").write_text(json.dumps(golden(Tokenizer.from_file(sys.argv[2]), root)))
        return
    for kind in KINDS:
        folder = root / "tokenizers" / kind
        folder.mkdir(parents=True)
        tokenizer = make_tokenizer(kind)
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_golden.json").write_text(json.dumps(golden(tokenizer, root)))


if __name__ == "__main__":
    main()
