"""Every model class of the installed transformers, tiny, stock beside swapped: outputs, loss, gradients, rows padded on the left and
on the right, generated tokens; by default and with attention=True.

    PYTHONPATH=python:python/tests HOTSWAP_PACKAGES=build/packages python -m sweep [--only REGEX] [--sample N --seed S]
    python -m sweep --results FILE --write docs/python_tested.md

--results keeps a line of JSON for each class, and goes on where a run was cut off. --write puts the tables between the two marks of
that document. Exit 1 where a swapped model differs from stock or raises.
"""

import argparse
import copy
import gc
import json
import random
import re
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path

import torch
import transformers

import hotswap
import shrunk

WAYS = {"default": {}, "attention": dict(attention=True)}
ALWAYS_REAL = ("logits", "loss", "last_hidden_state")  # of a decoder, whose tokens are none of its encoder's padding
OUTPUTS, GRADIENTS = 2e-4, 2e-3  # of the norm, in float32: sums in another order, through two layers and a head


def _tensors(out, where="") -> dict:
    """Every float tensor of an output, by its place."""
    if isinstance(out, torch.Tensor):
        return {where: out.detach()} if out.is_floating_point() else {}
    items = out.items() if isinstance(out, dict) else enumerate(out) if isinstance(out, (tuple, list)) else ()
    return {k: v for name, part in items for k, v in _tensors(part, f"{where}.{name}".lstrip(".")).items()}


def _apart(got, want, real=None) -> float:
    if got.shape != want.shape:
        return float("inf")
    if real is not None:
        got, want = got[real], want[real]
    got, want = got.double(), want.double()
    whole = want.isfinite()
    if not bool((whole == got.isfinite()).all()):
        return float("inf")
    got, want = got[whole], want[whole]
    return float((got - want).norm() / want.norm().clamp_min(1e-6)) if want.numel() else 0.0


def _worst(got: dict, want: dict, real=None):
    """(distance, name) of the output that is farthest. real: which tokens are none of padding; what has no token is left out then."""
    if got.keys() != want.keys():
        return float("inf"), f"other outputs: {sorted(got.keys() ^ want.keys())[:3]}"
    of_tokens = lambda k: real is not None and want[k].shape[:2] == real.shape  # noqa: E731
    names = [k for k in want if real is None or of_tokens(k) or k in ALWAYS_REAL]
    return max(((_apart(got[k], want[k], real if of_tokens(k) else None), k) for k in names), default=(0.0, ""))


def _copied(inputs: dict) -> dict:
    return {name: t.clone() for name, t in inputs.items()}  # some models write into theirs


def _labels(model, inputs) -> dict:
    ids = inputs.get("decoder_input_ids", inputs.get("input_ids"))
    if ids is None or "labels" not in shrunk._names(model):
        return {}
    return dict(labels=ids.clone())


def _padded(model, inputs, side) -> tuple:
    """Inputs with three of the first row's tokens padding, and which tokens are real."""
    if "attention_mask" not in shrunk._names(model) or "input_ids" not in inputs:
        return None, None
    mask = torch.ones_like(inputs["input_ids"])
    mask[0, slice(0, 3) if side == "left" else slice(-3, None)] = 0
    return inputs | dict(attention_mask=mask), mask.bool()


class Checks:
    """What a model gives, each under a name: a function of the model."""

    def __init__(self, model, inputs):
        self.inputs, self.labels = inputs, _labels(model, inputs)
        self.made = {"outputs": (self.outputs(inputs), OUTPUTS, None)}
        for side in ("left", "right"):
            padded, real = _padded(model, inputs, side)
            if padded is not None:
                self.made[f"padded {side}"] = (self.outputs(padded), OUTPUTS, real)
        self.made["gradients"] = (self.gradients, GRADIENTS, None)
        if model.can_generate() and "input_ids" in inputs:
            self.made["generated"] = (self.generated, 0.0, None)

    def outputs(self, inputs):
        def run(model):
            with torch.no_grad():
                return _tensors(model.eval()(**_copied(inputs)))

        return run

    def gradients(self, model):
        model.train().zero_grad(set_to_none=True)
        out = model(**_copied(self.inputs), **_copied(self.labels))
        loss = getattr(out, "loss", None)
        found = _tensors(out)
        if loss is None:
            loss = sum((t.float() ** 2).mean() for t in _floats(out))
        loss.backward()
        grads = [(n, p.grad) for n, p in model.named_parameters() if p.grad is not None]
        model.eval()
        return {"loss": loss.detach(), "all gradients": torch.cat([g.flatten() for _, g in grads])} if grads else found

    def generated(self, model):
        given = {k: v for k, v in _copied(self.inputs).items() if k != "decoder_input_ids"}
        ids = model.eval().generate(**given, max_new_tokens=6, do_sample=False, pad_token_id=0)
        return {"ids": getattr(ids, "sequences", ids).double()}


def _floats(out):
    if isinstance(out, torch.Tensor):
        return [out] if out.is_floating_point() and out.requires_grad else []
    items = out.values() if isinstance(out, dict) else out if isinstance(out, (tuple, list)) else ()
    return [t for part in items for t in _floats(part)]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


def _bound(model) -> dict:
    """Layer -> how many are bound; and why the others are stock."""
    bound, stock = {}, {}
    for row in hotswap.report(model).rows:
        if row.package:
            bound[row.layer] = bound.get(row.layer, 0) + 1
        else:
            stock[f"{row.layer}: {row.why}"] = stock.get(f"{row.layer}: {row.why}", 0) + 1
    return dict(bound=bound, stock=stock)


def _nudged(model):
    """The same model, its weights changed in their last bit."""
    made = copy.deepcopy(model)
    with torch.no_grad():
        for i, p in enumerate(made.parameters()):
            p.mul_(1 + (2**-23 if i % 2 else -(2**-23)))
    return made


def compare(name: str) -> dict:
    """What became of one class: not built, or for each way what was bound, checked and wrong."""
    result = {"class": name}
    try:
        model, inputs = shrunk.build(getattr(transformers, name))
    except Exception as error:  # of stock: not ours to judge
        return result | {"not built": _said(error)}
    wanted = {}
    checks = Checks(model, inputs).made
    for check, (run, limit, _) in checks.items():
        try:
            one, two = run(copy.deepcopy(model)), run(_nudged(model))  # copies: a step of training moves running means
        except Exception as error:
            result.setdefault("stock cannot", {})[check] = _said(error)
            continue
        if _worst(one, two)[0] <= limit / 2:
            wanted[check] = one
        else:  # of random numbers, or so that one rounding changes it
            result.setdefault("stock cannot", {})[check] = "gives other numbers where weights change in their last bit"
    for way, options in WAYS.items():
        wrong = {}
        try:
            result[way] = _bound(hotswap.kernelize(copy.deepcopy(model), **options))
            for check, want in wanted.items():
                run, limit, real = checks[check]
                try:
                    distance, place = _worst(run(hotswap.kernelize(copy.deepcopy(model), **options)), want, real)
                    if not distance <= limit:
                        wrong[check] = f"{distance:.2g} of {place}"
                except Exception as error:
                    wrong[check] = _said(error)
        except Exception as error:
            wrong["kernelize"] = _said(error)
        result.setdefault(way, {}).update(checked=sorted(wanted), wrong=wrong)
    return result


def is_wrong(result: dict) -> bool:
    return any(result.get(way, {}).get("wrong") for way in WAYS)


def run(names: list, results: Path = None, say=print) -> list:
    done = [json.loads(line) for line in results.read_text().splitlines()] if results and results.exists() else []
    known = {r["class"] for r in done}
    for name in names:
        if name in known:
            continue
        start = time.time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = compare(name)
        done.append(result)
        if results:
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
        state = "WRONG" if is_wrong(result) else f"not built: {result['not built']}" if "not built" in result else "same"
        say(f"{name:50} {time.time() - start:5.1f} s  {state}")
        for way in WAYS:
            for check, what in result.get(way, {}).get("wrong", {}).items():
                say(f"    {way}, {check}: {what}")
        gc.collect()
    return [r for r in done if r["class"] in set(names)]


# ---- the document ---------------------------------------------------------------------------------------------------

MARKS = "<!-- written by python/tests/sweep.py -->", "<!-- end of what python/tests/sweep.py wrote -->"


def _grouped(rows: list) -> list:
    """(key, names) of (key, name): the largest groups first."""
    groups = {}
    for key, name in rows:
        groups.setdefault(key, []).append(name)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))


def _attention_of(result: dict) -> str:
    if "attention" in result["attention"].get("bound", {}):
        return "bound"
    reasons = [text for text in result["attention"].get("stock", {}) if text.startswith("attention: ")]
    if not reasons:
        return "has none"
    return "stock: no flash attention for the class" if "says that flash attention" in reasons[0] else "stock: another formula"


def tables(done: list) -> str:
    """Which classes were compared, with which layers bound, and what was wrong; which were not built, and why."""
    built = [r for r in done if "not built" not in r]
    wrong = [r for r in built if is_wrong(r)]
    versions = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch"))
    checks = sum(len(r[way]["checked"]) for r in built for way in WAYS)
    lines = [
        f"{versions}, {time.strftime('%Y-%m-%d')}: {len(done)} classes, {len(built)} built tiny and compared in float32 on the CPU "
        f"({checks} comparisons), {len(wrong)} wrong.",
        "",
        "| layers bound by default | with `attention=True` | classes |",
        "|---|---|---|",
    ]
    for (layers, attends), names in _grouped([((_layers(r), _attention_of(r)), r["class"]) for r in built]):
        lines.append(f"| {layers} | {attends} | {', '.join(sorted(names))} |")
    lines += ["", "| wrong | what |", "|---|---|"] if wrong else []
    for r in wrong:
        found = [f"{way}, {check}: {what}" for way in WAYS for check, what in r[way]["wrong"].items()]
        lines.append(f"| {r['class']} | {'; '.join(found).replace('|', '/')} |")
    lines += ["", "| not built with small settings | classes |", "|---|---|"]
    for why, names in _grouped([(r["not built"].split(":")[0], r["class"]) for r in done if "not built" in r]):
        lines.append(f"| {why} | {', '.join(sorted(names))} |")
    return "\n".join(lines)


def _layers(result: dict) -> str:
    bound = {name for name in result["default"].get("bound", {}) if name != "attention"}
    return ", ".join(sorted(bound)) or "none"


def write(document: Path, done: list) -> None:
    text = document.read_text()
    before, rest = text.split(MARKS[0])
    document.write_text(f"{before}{MARKS[0]}\n{tables(done)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a regular expression for names of classes")
    parser.add_argument("--sample", type=int, help="only so many, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--write", type=Path, help="the document whose tables are written")
    parser.add_argument("--known", action="store_true", help="only classes that --results has")
    args = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    names = [name for name in shrunk.classes() if re.search(args.only, name)]
    if args.known:
        names = [json.loads(line)["class"] for line in args.results.read_text().splitlines()]
    if args.sample:
        names = random.Random(args.seed).sample(names, args.sample)
    done = run(names, args.results, lambda *words: print(*words, flush=True))
    if args.write:
        write(args.write, done)
    wrong = [r["class"] for r in done if is_wrong(r)]
    built = [r for r in done if "not built" not in r]
    print(f"{len(done)} classes, {len(built)} built, {len(wrong)} wrong: {', '.join(wrong)}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
