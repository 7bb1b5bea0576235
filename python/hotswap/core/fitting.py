"""A forward or function of ours, callable in every way that the stock one is: what it has no name for is the stock one's to do."""

import functools
import inspect
from inspect import Parameter
from typing import Callable, NamedTuple, Optional

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Fitted(NamedTuple):
    forward: Callable
    note: str  # which calls the stock one answers; "": none


def _parameters(function: Callable) -> dict:
    return dict(inspect.signature(function).parameters)


def _required(parameters: dict) -> list:
    return [n for n, p in parameters.items() if p.default is Parameter.empty and p.kind not in _VARIABLE]


def _names_in_ours(stock: dict, ours: dict) -> dict:
    """Name of a parameter of stock's -> its name in ours: the same; of those that ours requires under another name, by their order."""
    known = {name: name for name in stock if name in ours and ours[name].kind not in _VARIABLE}
    others = [name for name, p in stock.items() if name not in known and p.kind in _POSITIONAL]
    return known | dict(zip(others, (name for name in _required(ours) if name not in known)))


def fitted(stock: Callable, ours: Callable, asked: Optional[Callable] = None) -> Optional[Fitted]:
    """None: ours needs an argument that stock has not. asked: whose signature is stock's, where that is not its own."""
    theirs, mine = _parameters(asked or stock), _parameters(ours)
    names = _names_in_ours(theirs, mine)
    needed = {name for name, own in names.items() if own in _required(mine)}
    if len(needed) < len(_required(mine)):
        return None
    unknown = [n for n, p in theirs.items() if n not in names and p.kind not in _VARIABLE]
    optional = [n for n in needed if theirs[n].default is not Parameter.empty]
    others = [n for n, p in theirs.items() if p.kind in _VARIABLE and n not in mine]
    same_defaults = all(theirs[n].default is mine[own].default or theirs[n].default == mine[own].default for n, own in names.items())
    in_order = list(names.items()) == [(n, n) for n in theirs if n in names] and list(mine)[: len(names)] == list(names)
    if not unknown and not others and same_defaults and in_order:
        return Fitted(ours, "")
    positional = [n for n, p in theirs.items() if p.kind in _POSITIONAL]
    defaults = {n: theirs[n].default for n in names if theirs[n].default is not Parameter.empty}
    unset = {n: theirs[n].default for n in unknown if theirs[n].default is not Parameter.empty}

    @functools.wraps(ours)
    def forward(*args, **kwargs):
        given = defaults | dict(zip(positional, args)) | kwargs
        known = all(n in names or n in unset and given[n] is unset[n] for n in given)
        if len(args) > len(positional) or not known or any(given.get(n) is None for n in optional):
            return stock(*args, **kwargs)
        return ours(**{names[n]: value for n, value in given.items() if n in names})

    forward.__signature__ = inspect.signature(asked or stock)
    notes = [f"with {n}" for n in unknown] + [f"without {n}" for n in optional] + ["with other arguments"] * bool(others)
    return Fitted(forward, f"calls {' or '.join(notes)} run stock" if notes else "")
