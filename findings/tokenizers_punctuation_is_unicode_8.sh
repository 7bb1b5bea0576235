#!/usr/bin/env bash
# tokenizers 0.23.3 decides what punctuation is by the tables of Unicode 8.0 (2015), whatever Python's are.
# Natural guess: general category P of the current standard, as unicodedata (14.0 and later here) has it. A tokenizer
# written to that guess splits words of Telugu, Kannada and others where the library does not, and the reverse for a
# character whose category changed since.
# Seen: U+2E43 DASH WITH LEFT UPTURN (Po since 9.0) joins its word; U+166D (So since 12.0) still splits one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q --disable-pip-version-check tokenizers==0.23.3
"$folder/venv/bin/python" - <<'PY'
import unicodedata
from tokenizers.pre_tokenizers import Punctuation

def splits(character):
    return len(Punctuation("isolated").pre_tokenize_str("a" + character + "a")) == 3

def category(character):
    return unicodedata.category(character)[0]

seen = [(f"U+{ord(c):04X}", category(c), splits(c)) for c in ("!", "\u2e43", "\u166d")]
print(seen)
assert seen == [("U+0021", "P", True), ("U+2E43", "P", False), ("U+166D", "S", True)], seen
PY
