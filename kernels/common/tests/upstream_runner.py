"""Runs test files of others, as they are, over our ops: what a package's tests/upstream.py, which names modules and functions,
has in common with the others.

--most runs so many parametrisations of each test, in an order drawn with a fixed seed; those that skip themselves do
not count. On the CPU "cuda" as a device means the CPU, and what is repeated a hundred times and more is repeated ROUNDS times.

Prints what passed, in how many of those our ops ran, why others did not, and how often each op was called.
"""

import contextlib
import random
import re
import signal
import sys
import types
from collections import Counter, defaultdict

import pytest
import torch
from torch.overrides import TorchFunctionMode

ROUNDS = 20  # on the CPU
RESERVE = 20  # times --most: so many parametrisations become tests; most of the others may skip themselves
MAX_BYTES = 2**35  # some fill a GPU's memory to disturb it

# ---- modules that are not there -------------------------------------------------------------------------------------


class Anything:
    """What a file takes from Triton while it is read: decorators, types, constants."""

    def __call__(self, *_, **__):
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, grid):
        raise RuntimeError("a kernel of upstream's was called, which is not there")


class StandIn(types.ModuleType):
    __version__ = "3.4.0"
    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


@contextlib.contextmanager
def stand_ins(*names):
    """Only while upstream's files are read: torch looks for Triton too."""
    before = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: StandIn(name) for name in names})
    try:
        yield
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module


def package_without_init(name, folder):
    if not (folder / name).is_dir():
        sys.exit(f"expected a checkout with a folder {name}; got {folder}")
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = [str(folder / name)]
    return module


def module_of(name, **names):
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(names)
    return module


# ---- "cuda" on the CPU ----------------------------------------------------------------------------------------------


def _to_cpu(value):
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    return "cpu" if isinstance(value, str) and value.startswith("cuda") else value


class OnCpu(TorchFunctionMode):
    def __torch_function__(self, function, _, args=(), kwargs=None):
        kwargs = {name: _to_cpu(value) if name == "device" else value for name, value in (kwargs or {}).items()}
        if function is torch.empty and args and isinstance(args[0], int) and args[0] > MAX_BYTES:
            args = (0,)
        return function(*map(_to_cpu, args), **kwargs)


class _Properties:
    total_memory, multi_processor_count, major, minor, name = 2**36, 132, 9, 0, "none"


def few_rounds(*bounds):
    return range(*(ROUNDS if len(bounds) == 1 and bound >= 100 else bound for bound in bounds))


def _read_on_cpu(patch):
    """What test files ask of a GPU when they are read."""
    patch.setattr(torch.cuda, "is_available", lambda: True)
    patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def _run_on_cpu(patch):
    patch.setattr(torch.cuda, "synchronize", lambda *_: None)
    patch.setattr(torch.cuda, "manual_seed_all", lambda seed: None)
    patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    patch.setattr(torch.cuda, "get_device_properties", lambda device=None: _Properties)


# ---- pytest ---------------------------------------------------------------------------------------------------------


def _first_line(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    skipped = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    lines = (crash.message if crash else skipped).splitlines() or [""]
    return lines[0].removeprefix("Skipped: ")


@contextlib.contextmanager
def _no_longer_than(seconds):
    def give_up(*_):
        raise TimeoutError(f"took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Runner:
    """pytest's hooks: which tests, on which device, and what became of them.

    on_cpu: the files ask for a GPU, and get none. ops: of each package that counts. left_out: reason by a test's name.
    outside: reason why a parametrisation is left out, or None, by its pytest item. put: what a file's module is given once
    it is read. seconds: what takes longer is given up. after: called after each test."""

    def __init__(
        self, files, ops, on_cpu=False, most=0, left_out={}, outside=lambda item: None, put=lambda module: None, seconds=0,
        after=lambda: None,
    ):  # fmt: skip
        self.files, self.ops, self.on_cpu, self.most, self.seconds = files, ops, on_cpu, most, seconds
        self.left_out, self.outside, self.put, self.after = left_out, outside, put, after
        self.names = [sorted(o.op_names().split()) for o in ops]
        self.collected, self.outcomes, self.reasons = Counter(), defaultdict(Counter), defaultdict(Counter)
        self.not_drawn = defaultdict(Counter)
        self.stand_ins = {}  # parametrisations of tests of which none is drawn
        self.keys, self.unseen, self.all_are_made, self.tests = {}, False, not most, ()

    def calls(self):
        return {name: o.call_count(name) for o, names in zip(self.ops, self.names) for name in names}

    @pytest.hookimpl(wrapper=True)
    def pytest_pycollect_makemodule(self, module_path):
        """The files ask for a GPU when they are read. Modules are made of their neighbours too, which are not read."""
        if module_path not in self.files:
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            if self.on_cpu:
                _read_on_cpu(patch)
            module = yield
            module.obj  # noqa: B018: this reads it
        if self.on_cpu:
            module.obj.range = few_rounds
        self.put(module.obj)
        return module

    @pytest.hookimpl(wrapper=True)
    def pytest_generate_tests(self, metafunc):
        """Draws before tests are made of parametrisations, which for 300000 of them takes a minute."""
        yield
        if self.all_are_made or not metafunc._calls:
            return
        key, within = (metafunc.definition.path.name, metafunc.function.__name__), []
        if self.tests and key[1] not in self.tests:
            del metafunc._calls[1:]  # not asked for, and read all the same
            return
        self.collected[key] += len(metafunc._calls)
        for call in metafunc._calls:
            why = self.outside(types.SimpleNamespace(callspec=call, originalname=key[1]))
            if why is None:
                within.append(call)
            else:
                self.not_drawn[key][why] += 1
        some = random.Random(0).sample(within, len(within))[: 0 if key[1] in self.left_out else RESERVE * self.most]
        if not some:  # without any it would be a test of no parameters
            some = metafunc._calls[:1]
            self.stand_ins.update({id(call): call for call in some})
        metafunc._calls[:] = some

    @pytest.hookimpl(trylast=True)  # after -k
    def pytest_collection_modifyitems(self, items):
        tests = defaultdict(list)
        for item in items:
            name = getattr(item, "callspec", None) and item.originalname or re.sub(r"_\d+_\w+$", "", item.name)
            self.keys[item.nodeid] = item.path.name, name
            tests[item.path.name, name].append(item)
        kept = []
        for key, its in tests.items():
            if key in self.collected:  # drawn already
                kept += [item for item in its if id(getattr(item, "callspec", None)) not in self.stand_ins]
                continue
            self.collected[key] = len(its)
            if key[1] in self.left_out:
                continue
            within = []
            for item in its:
                why = self.outside(item)
                if why is None:
                    within.append(item)
                else:
                    self.not_drawn[key][why] += 1
            kept += random.Random(0).sample(within, len(within)) if self.most else within
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        """True: nothing else is done with it. Those that skip themselves do not count."""
        if not self.most or self.outcomes[self.keys[item.nodeid]]["ran"] < self.most:
            return None
        item.session._setupstate.teardown_exact(nextitem)  # of the test before, which was told to expect this one
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef, request):
        if self.on_cpu and fixturedef.argname == "device":  # some leave a CPU out
            fixturedef.cached_result = "cuda", fixturedef.cache_key(request), None
            return "cuda"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item):
        before = self.calls()
        with contextlib.ExitStack() as stack:
            if self.on_cpu:
                _run_on_cpu(stack.enter_context(pytest.MonkeyPatch.context()))
                stack.enter_context(OnCpu())
            stack.enter_context(_no_longer_than(self.seconds))
            try:
                return (yield)
            finally:
                torch.use_deterministic_algorithms(False)  # some leave it on
                self.unseen = self.calls() == before
                self.after()

    def pytest_runtest_logreport(self, report):
        if report.when != "call" and report.passed:
            return
        key = self.keys[report.nodeid]
        why = "" if report.passed else _first_line(report)
        if hasattr(report, "wasxfail"):
            outcome, why = "xfailed", report.wasxfail
        elif report.failed and why.startswith("[XPASS(strict)]"):
            outcome = "passed"  # what upstream's own cannot do
        elif report.failed and re.match(r"[\w.]+: ([\w.]+: )?expected .*; got ", why):
            outcome = "refused"
        elif report.failed and why.startswith("TimeoutError: took longer"):
            outcome = "too long"
        else:
            outcome = report.outcome
        self.outcomes[key][outcome] += 1
        self.outcomes[key]["ran"] += outcome != "skipped"
        self.outcomes[key]["ours"] += report.passed and not self.unseen
        if why:
            self.reasons[key][outcome, re.sub(r"^reason: |0x\w+", "", why)] += 1

    def print_table(self):
        columns = ("passed", "ours", "failed", "refused", "too long", "xfailed", "skipped")
        print("\n| file | test | of | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 3) + "|")
        for key, of in self.collected.items():
            seen = [str(self.outcomes[key][column] or "") for column in columns]
            print(f"| {key[0]} | {key[1]} | {of} | {' | '.join(seen)} |")
        print()
        for key in self.collected:
            if key[1] in self.left_out:
                print(f"{key[1]}: left out, {self.left_out[key[1]]}")
            for why, count in self.not_drawn[key].most_common():
                print(f"{key[1]}: {count} left out, {why}")
            for (outcome, why), count in self.reasons[key].most_common():
                print(f"{key[1]}: {count} {outcome}, {why}")
        print("\ncalls of our ops: " + ", ".join(f"{name} {count}" for name, count in self.calls().items() if count))

    def run(self, rootdir, *arguments, tests=()):
        """tests: these functions of each file alone, so that the parametrisations of no other are made."""
        files = [f"{file}::{test}" for file in self.files for test in tests] if tests else map(str, self.files)
        plain = "-q", "--tb=short", "--show-capture=no", "--no-header", "-p", "no:cacheprovider", "--import-mode=importlib"
        self.tests = tests
        self.all_are_made |= "-k" in arguments and bool(arguments[arguments.index("-k") + 1])
        code = pytest.main([*files, *plain, "--rootdir", str(rootdir), *arguments], [self])
        self.print_table()
        return code


def add_arguments(parser):
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--most", type=int, default=0, help="parametrisations of a test; 0: all")
    parser.add_argument("-k", default="", help="as pytest's")
    names = lambda text: [name for name in text.split(",") if name]
    parser.add_argument("--tests", type=names, default=[], help="these functions alone: a file of 500000 cases takes a minute to read")
