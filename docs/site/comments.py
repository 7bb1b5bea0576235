"""Doxygen's filter for a header: our comments are plain //, and Doxygen reads /// above a declaration and ///< after one.

    comments.py HEADER
"""

import re
import sys
from pathlib import Path


def for_doxygen(text: str) -> str:
    """The comment at the top is about the file; one that stands above a declaration, or after it in its line, is about that."""
    top = re.match(r"(?://.*\n)+", text)
    body = text[top.end() :] if top else text
    body = re.sub(r"^(\s*)// ?(.*)$", r"\1/// \2", body, flags=re.MULTILINE)
    body = re.sub(r"^(\s*[^\s/].*[;,{}])\s+// (?!NOLINT)(.*)$", r"\1  ///< \2", body, flags=re.MULTILINE)
    about = "".join(f"/// {line[2:].strip()}\n" if line[2:4] != "  " else f"///     {line[2:].strip()}\n" for line in (top[0].splitlines() if top else []))
    return f"/// @file\n{about}\n{body}"


if __name__ == "__main__":
    print(for_doxygen(Path(sys.argv[1]).read_text()))
