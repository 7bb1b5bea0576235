"""Do commits and documents cite each other truly? Exits 77 where there is no history to look at.

- A subject has at most 72 characters from FIRST on. A merge's subject says what was merged: no branch, no path.
- A commit that a document cites is in the history. One of another project is written project@commit.
"""

import bisect
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FIRST = "6318eb7"  # the rule for subjects holds after this commit
LONGEST = 72
MERGE = re.compile(r"^Merge(d)? (branch|remote|commit|tag|pull request)\b|^Merge \S+$| into \S+$|(^|\s)/\w|\w/\w+/")
CITED = re.compile(r"(?<![\w@./#-])(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}(?![\w/-]|\.\w)")


def git(*words: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *words], check=True, capture_output=True, text=True).stdout


def subject_problem(subject: str, parents: int) -> str | None:
    if len(subject) > LONGEST:
        return f"expected a subject of at most {LONGEST} characters; got {len(subject)}"
    if parents > 1 and MERGE.search(subject):
        return "expected what was merged; got the name of a branch or a path"
    return None


def cited(text: str) -> set[str]:
    return set(CITED.findall(text))


def unknown(commits: set[str]) -> set[str]:
    """Those that name no commit of this history. Asked of the history, not of the object database: that keeps the
    commits of branches that landed under other names, and a clone does not."""
    history = sorted(git("rev-list", "HEAD").splitlines())
    return {commit for commit in commits if not is_in(history, commit)}


def is_in(history: list[str], commit: str) -> bool:
    """Does one of the sorted `history` begin with `commit`?"""
    index = bisect.bisect_left(history, commit)
    return index < len(history) and history[index].startswith(commit)


def self_test() -> None:
    assert subject_problem("x" * 73, 1) and not subject_problem("x" * 72, 1)
    for subject in ("Merge branch 'a'", "Merge main", "Merge a into b", "Merge /srv/a of c", "Merge remote-tracking branch 'origin/main'"):
        assert subject_problem(subject, 2), subject
    assert not subject_problem("Merge decode's table of blocks with the cache of pages", 2)
    text = "commit 6318eb7 (of 8636360, 1f1f1f1f), flash-attention@0251105, a1b2c3/x, sm_90a, 1234567, defaced, d556fda."
    assert cited(text) == {"6318eb7", "1f1f1f1f", "d556fda"}, cited(text)
    assert unknown({"f" * 39 + "0"}) == {"f" * 39 + "0"}
    assert is_in(["1a", "2b", "3c"], "2") and not is_in(["1a", "2b"], "2c") and not is_in(["1a"], "3")


def main() -> None:
    if not (ROOT / ".git").exists() or git("rev-parse", "--is-shallow-repository").strip() == "true":
        print("commits: no whole history here: nothing is checked")
        sys.exit(77)
    self_test()
    found = []
    for line in git("log", "--format=%h\t%P\t%s", f"{FIRST}..HEAD").splitlines():
        commit, parents, subject = line.split("\t", 2)
        if problem := subject_problem(subject, len(parents.split())):
            found.append(f"{commit} '{subject}': {problem}")
    documents = [ROOT / name for name in git("ls-files", "-co", "--exclude-standard", "*.md").splitlines()]
    texts = {path: path.read_text() for path in documents if path.exists()}
    missing = unknown(set().union(*map(cited, texts.values())))
    for path, text in texts.items():
        for commit in sorted(cited(text) & missing):
            found.append(f"{path.relative_to(ROOT)}: expected a commit of this history or project@commit; got {commit}")
    print("\n".join(found) if found else f"commits: {len(texts)} documents, subjects since {FIRST}: all right")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
