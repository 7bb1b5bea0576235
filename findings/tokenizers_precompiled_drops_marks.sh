#!/usr/bin/env bash
# tokenizers 0.23.3's Precompiled normalizer looks up a whole grapheme in SentencePiece's table, takes the first
# (shortest) match of its bytes and replaces all of the grapheme by it: combining marks after the match are lost, and
# CRLF becomes one blank. SentencePiece 0.2.1 itself, with the same table, takes the longest match at each offset and
# goes on after it.
# Natural guess: the same table gives the same text in both libraries.
# Seen: fullwidth a + acute is 'a' in one and U+00E1 in the other; 'fi' ligature + acute loses the acute; CRLF is one
# blank or two.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3 sentencepiece==0.2.1 protobuf==6.33.2
"$folder/venv/bin/python" - <<'PY'
import io
import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers.normalizers import Precompiled

written = io.BytesIO()
sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["hello world"] * 50), model_writer=written,
                                         vocab_size=20, hard_vocab_limit=False, minloglevel=2)
model = sentencepiece_model_pb2.ModelProto()
model.ParseFromString(written.getvalue())
spec = model.normalizer_spec
assert spec.name == "nmt_nfkc"
ours = Precompiled(spec.precompiled_charsmap)
theirs = sentencepiece.SentencePieceNormalizer(rule_name=spec.name)
texts = ["\uff41\u0301", "\ufb01\u0301", "\r\n", "a\u0301"]
seen = [(text, ours.normalize_str(text), theirs.Normalize(text)) for text in texts]
for row in seen:
    print(*map(ascii, row))
assert seen == [("\uff41\u0301", "a", "\xe1"), ("\ufb01\u0301", "fi", "fi\u0301"), ("\r\n", " ", "  "),
                ("a\u0301", "\xe1", "\xe1")], seen
PY
