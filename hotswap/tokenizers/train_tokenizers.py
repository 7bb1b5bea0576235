"""Trains small tokenizers of each kind that golden_tokenizers.py does not have: OUT/<name>.json, for kinds_test.cpp.

    python train_tokenizers.py OUT
"""

import json
import struct
import sys
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

LICENSE = Path(__file__).resolve().parents[2] / "LICENSE"
LINES = LICENSE.read_text().splitlines() + [
    "Hello, wörld! naïve café déjà vu, she's here; don't I'm we've they're 's do not n't",
    "日本語のテキスト カタカナ 漢字 한국어 Привет мир שלום مرحبا ไทย हिन्दी",
    "the hello HELLO hell x_y ab 12 3456 ... !? WORD norm al lll",
]
REPLACEMENTS = {
    **{chr(0xFF01 + i): chr(0x21 + i) for i in range(94)},  # fullwidth forms
    "\r\n": " ", "\n": " ", "\t": " ", "\u00a0": " ", "\u3000": " ", "\u200b": "", "\u00ad": "", "\x00x": "never",
    "\ufb01": "fi", "\u00bd": "1\u20442", "\u2126": "\u03a9", "\u212a": "K", "e\u0301": "\u00e9", "e": "e", "a\u0300": "\u00e0",
    "\u1112\u1161\u11ab": "\ud55c", "\u0e33": "\u0e4d\u0e32", "\u2028": "\n\n\n", "\u017f": "s", "ab": "XY", "\u2163": "IV",
    "\U0001F44B": "wave", "\u0344": "\u0308\u0301",
}  # fmt: skip


def charsmap(replacements):
    """The table of SentencePiece's compiled rules: a double array in darts-clone's form, and the texts."""
    texts, at = b"", {}
    trie = {}
    for key, value in replacements.items():
        at[key] = len(texts)
        texts += value.encode() + b"\0"
        node = trie
        for byte in key.encode():
            if byte == 0:
                break
            node = node.setdefault(byte, {})
        else:
            node[0] = at[key]
    units, used = {0: 0}, {0}

    def insert(node, unit):  # a free offset under which the node's children fit
        offset = 1
        while any((unit ^ offset ^ label) in used for label in node):
            offset += 1
        used.update(unit ^ offset ^ label for label in node)
        units[unit] |= offset << 10 | (0 in node) << 8
        for label, child in node.items():
            if label == 0:
                units[unit ^ offset] = child | 1 << 31
            else:
                units[unit ^ offset ^ label] = label
        for label, child in node.items():
            if label != 0:
                insert(child, unit ^ offset ^ label)

    insert(trie, 0)
    array = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(max(units) // 256 * 256 + 256))
    return struct.pack("<I", len(array)) + array + texts


def tokenizer(model, normalizer=None, pre_tokenizer=None, post_processor=None, decoder=None, trainer=None):
    out = Tokenizer(model)
    for name, part in {"normalizer": normalizer, "pre_tokenizer": pre_tokenizer, "decoder": decoder}.items():
        if part is not None:
            setattr(out, name, part)
    if trainer is not None:
        out.train_from_iterator(LINES, trainer)
    if post_processor is not None:
        out.post_processor = post_processor
    return out


def bert(special=("[UNK]", "[CLS]", "[SEP]", "[PAD]"), prefix="##", **normalizer):
    return tokenizer(
        models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=prefix, max_input_chars_per_word=12),
        normalizers.BertNormalizer(**normalizer),
        pre_tokenizers.BertPreTokenizer(),
        processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)),
        decoders.WordPiece(prefix=prefix, cleanup=prefix == "##"),
        trainers.WordPieceTrainer(
            vocab_size=600, special_tokens=list(special), show_progress=False, continuing_subword_prefix=prefix
        ),
    )


def unigram(normalizer, pre_tokenizer, byte_fallback=False, decoder=None):
    special = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256 if byte_fallback else 0)]
    trainer = trainers.UnigramTrainer(vocab_size=700, special_tokens=special, unk_token="<unk>", show_progress=False)
    out = tokenizer(models.Unigram(), normalizer, pre_tokenizer, None, decoder, trainer)
    if byte_fallback:
        vocabulary = json.loads(out.to_str())["model"]["vocab"]
        out.model = models.Unigram([tuple(pair) for pair in vocabulary], 0, True)
    return out


def deberta(normalizer, punctuation):
    """DeBERTa-v3's: as transformers 5 makes it, and as converted from SentencePiece's file, which are published."""
    split = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    parts = [pre_tokenizers.Punctuation(behavior="isolated"), split] if punctuation else [split]
    out = unigram(normalizer, pre_tokenizers.Sequence(parts), decoder=decoders.Metaspace())
    special = [("<s>", 1), ("</s>", 2)]
    out.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0", pair="<s>:0 $A:0 </s>:0 $B:1 </s>:1", special_tokens=special
    )
    return out


def bpe(normalizer, pre_tokenizer, post_processor, decoder, **affixes):
    special = ["<unk>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=special, show_progress=False, **affixes)
    model = models.BPE(unk_token="<unk>", fuse_unk="continuing_subword_prefix" in affixes, **affixes)
    return tokenizer(model, normalizer, pre_tokenizer, post_processor, decoder, trainer)


def main():
    out = Path(sys.argv[1])
    table = normalizers.Precompiled(charsmap(REPLACEMENTS))
    marian = normalizers.Sequence([table, normalizers.Strip(), normalizers.Replace("  ", " ")])
    roberta = processors.RobertaProcessing(("</s>", 2), ("<s>", 1), trim_offsets=True, add_prefix_space=True)
    plain_roberta = processors.RobertaProcessing(("</s>", 2), ("<s>", 1), trim_offsets=False, add_prefix_space=False)
    made = {
        "bert": bert(),
        "bert_cased": bert(lowercase=False, handle_chinese_chars=False),
        "bert_accents": bert(lowercase=True, strip_accents=False, clean_text=False),
        "bert_prefix": bert(lowercase=False, strip_accents=True, prefix="@"),
        "unigram": unigram(table, pre_tokenizers.Metaspace(), decoder=decoders.Metaspace()),
        "unigram_bytes": unigram(marian, pre_tokenizers.Metaspace(), True, decoders.ByteFallback()),
        "unigram_nmt": unigram(normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]), None),
        "deberta": deberta(
            normalizers.Sequence(
                [normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), normalizers.NFC(), normalizers.Strip(left=False)]
            ),
            punctuation=False,
        ),
        "deberta_converted": deberta(
            normalizers.Sequence(
                [normalizers.Lowercase(), normalizers.Strip(), table, normalizers.Replace(Regex(" {2,}"), " ")]
            ),
            punctuation=True,
        ),
        "scripts": unigram(
            normalizers.NFKD(), pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.Whitespace()])
        ),
        "word_level": tokenizer(
            models.WordLevel(unk_token="<unk>"),
            normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
            pre_tokenizers.Whitespace(),
            decoder=decoders.CTC(pad_token="l", word_delimiter_token="o"),
            trainer=trainers.WordLevelTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False),
        ),
        "characters": tokenizer(
            models.WordLevel(unk_token="<unk>"),
            None,
            pre_tokenizers.FixedLength(1),
            decoder=decoders.CTC(pad_token="<unk>", word_delimiter_token="e", cleanup=True),
            trainer=trainers.WordLevelTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False),
        ),
        "openai": bpe(
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
            plain_roberta,
            decoders.BPEDecoder("</w>"),
            end_of_word_suffix="</w>",
        ),
        "clip": bpe(
            normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]),
            pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(add_prefix_space=False)]),
            roberta,
            decoders.ByteLevel(),
            end_of_word_suffix="</w>",
        ),
        "subword_prefix": bpe(
            None, pre_tokenizers.CharDelimiterSplit(" "), None, decoders.WordPiece(), continuing_subword_prefix="##"
        ),
        "both_affixes": bpe(
            None,
            pre_tokenizers.Whitespace(),
            roberta,
            None,
            continuing_subword_prefix="##",
            end_of_word_suffix="</w>",
        ),
        "byte_normalizer": bpe(normalizers.ByteLevel(), pre_tokenizers.FixedLength(7), roberta, decoders.ByteLevel()),
    }
    for name, one in made.items():
        one.save(str(out / f"{name}.json"))


if __name__ == "__main__":
    main()
