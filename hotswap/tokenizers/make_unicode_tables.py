"""Writes the character classes that the `tokenizers` library has inside, read off its behaviour.

    python make_unicode_tables.py classes > unicode_tables.cpp
    python make_unicode_tables.py normalization > unicode_normalization_tables.cpp
    clang-format -i unicode_tables.cpp unicode_normalization_tables.cpp

The library's classes are of several versions of Unicode (its punctuation is of 8.0), so no table of characters has
them. Every code point goes through a single component of the library, and what becomes of it shows its class.
"""

import re
import sys
import unicodedata

import tokenizers
from tokenizers import normalizers, pre_tokenizers
from train_tokenizers import charsmap

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
BERT = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}


def ranges(members):
    out = []
    for c in members:
        if out and (c == out[-1][1] + 1 or (out[-1][1], c) == (0xD7FF, 0xE000)):
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def removed_by(normalizer):
    return [c for c in POINTS if normalizer.normalize_str(f"a{chr(c)}b") == "ab"]


def punctuation():
    split = pre_tokenizers.Punctuation()
    return [c for c in POINTS if len(split.pre_tokenize_str("a" + chr(c))) == 2]


def joining():
    """What is of one grapheme with a letter before it: Precompiled then replaces both by what the letter becomes."""
    table = normalizers.Precompiled(charsmap({"a": "x"}))
    return [c for c in POINTS if c != ord("a") and table.normalize_str("a" + chr(c)) == "x"]


def combining():
    """What normalization sorts: it changes places with a mark of the lowest class after it, or the highest before."""
    nfd = normalizers.NFD()
    low, high = "\u0334", "\u0345"
    return [
        c for c in POINTS
        if nfd.normalize_str("b" + chr(c) + low)[1:2] == low or nfd.normalize_str("b" + high + chr(c))[-1:] == high
        if chr(c) not in (low, high)
    ] + [ord(low), ord(high)]  # fmt: skip


def decomposed_by(normalizer):
    """What is no longer itself: what newer versions of Unicode decompose stays whole here."""
    return [c for c in POINTS if normalizer.normalize_str(chr(c)) != chr(c)]


def late_lowercase():
    """[first, last, what to add] for letters that Unicode 14, the oldest version that we build on, does not have."""
    assert unicodedata.unidata_version == "14.0.0", "run this by Python 3.11"
    lowercase = normalizers.Lowercase()
    rows = []
    for c in POINTS:
        lower = lowercase.normalize_str(chr(c))
        if lower == chr(c).lower():
            continue
        offset = ord(lower) - c
        if rows and rows[-1][1:] == [c - 1, offset]:
            rows[-1][1] = c
        else:
            rows.append([c, c, offset])
    return rows


def scripts():
    """[first, last, class] for every run of code points of one script; class 0 joins every neighbour, 1 is Han."""
    split = pre_tokenizers.UnicodeScripts()

    def joined(a, b):
        return len(split.pre_tokenize_str(a + b)) == 1

    known = ["\u4e00"]
    rows = []
    for c in POINTS:
        text = chr(c)
        if joined(text, "a") and joined(text, "\u4e00"):
            number = 0
        elif rows and rows[-1][2] > 0 and joined(known[rows[-1][2] - 1], text):
            number = rows[-1][2]
        else:
            number = next((i + 1 for i, k in enumerate(known) if joined(k, text)), 0)
            if number == 0:
                known.append(text)
                number = len(known)
        if rows and rows[-1][2] == number and (c == rows[-1][1] + 1 or (rows[-1][1], c) == (0xD7FF, 0xE000)):
            rows[-1][1] = c
        else:
            rows.append([c, c, number])
    return [row for row in rows if row[2] > 0]


def array(name, comment, rows, kind="CodePointRange"):
    items = ", ".join("{" + ", ".join([f"0x{row[0]:x}", f"0x{row[1]:x}", *map(str, row[2:])]) + "}" for row in rows)
    return f"// {comment}\nconstexpr {kind} {name}[] = {{{items}}};"


def classes():
    clean = normalizers.BertNormalizer(**{**BERT, "clean_text": True})
    accents = normalizers.BertNormalizer(**{**BERT, "strip_accents": True})
    return [
        ("punctuation_ranges", array("kPunctuation", "The pre-tokenizer Punctuation.", ranges(punctuation()))),
        ("control_ranges", array("kRemovedByClean", "What clean_text of BertNormalizer removes.", ranges(removed_by(clean)))),
        ("nonspacing_ranges", array("kNonspacing", "What strip_accents of BertNormalizer removes.", ranges(removed_by(accents)))),
        ("mark_ranges", array("kMark", "What StripAccents removes.", ranges(removed_by(normalizers.StripAccents())))),
        ("script_ranges", array("kScripts", "The scripts of UnicodeScripts, by number.", scripts(), "ScriptRange")),
        ("joining_ranges", array("kJoining", "What joins a letter before it to one grapheme.", ranges(joining()))),
        ("late_lowercase_ranges", array("kLateLowercase", "Lower case that came after Unicode 14.", late_lowercase(), "LowercaseRange")),
    ]  # fmt: skip


def normalization():
    return [
        ("combining_ranges", array("kCombining", "A combining class that is not 0, in the library's tables.", ranges(sorted(combining())))),
        ("decomposed_ranges", array("kDecomposed", "What NFD decomposes.", ranges(decomposed_by(normalizers.NFD())))),
        ("compatible_ranges", array("kCompatible", "What NFKD decomposes.", ranges(decomposed_by(normalizers.NFKD())))),
    ]  # fmt: skip


def function(name, table):
    row, array_name = re.search(r"constexpr (\w+) (\w+)\[\]", table).groups()
    kind = "CodePointRanges" if row == "CodePointRange" else f"std::span<const {row}>"
    return f"{kind} {name}() {{ return {array_name}; }}"


def main():
    tables = {"classes": classes, "normalization": normalization}[sys.argv[1]]()
    print(
        f"""// Made by make_unicode_tables.py from the behaviour of the Python package tokenizers {tokenizers.__version__}.
#include "hotswap/tokenizers/unicode_tables.h"

namespace hotswap::tokenizers {{
namespace {{
"""
    )
    print(*(table for _, table in tables), sep="\n")
    print("\n}  // namespace\n")
    print(*(function(*table) for table in tables), sep="\n")
    print("\n}  // namespace hotswap::tokenizers")


if __name__ == "__main__":
    main()
