"""Every tensor argument of every op of every package, one at a time in each other dtype: the op takes it and computes what it
computes of the same values in the argument's own dtype, where the table below says that it may; or its error names the op, the
argument, what was expected, what came and what to do. The same of one dimension more. The calls are those of each package's
tests/gpu_cases.py, made on the CPU."""

import functools
import importlib.util
import re
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

spec = importlib.util.spec_from_file_location("test_ops", Path(__file__).with_name("test_ops.py"))
test_ops = importlib.util.module_from_spec(spec)
spec.loader.exec_module(test_ops)
PACKAGES, cases, loaded = test_ops.PACKAGES, test_ops.cases, test_ops.loaded

FLOATS, INTEGERS = {torch.float32, torch.bfloat16, torch.float16}, {torch.int64, torch.int32}
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64]
WITHOUT_TENSORS = {"call_count", "isa", "op_names"}


def ones(*shape, dtype=torch.bfloat16):
    return torch.ones(*shape, dtype=dtype)


def heads_of(a):
    return ones(a["q"].shape[-2], dtype=torch.float32)


def length_of(a):
    return a["u"].shape[2] if "u" in a else a["x"].shape[1 if a["x"].dim() == 4 else 2]


def state_of(a):
    if "u" in a:
        return ones(a["u"].shape[0], *a["A"].shape)
    if "weight" in a:
        return ones(*a["x"].shape[:2], a["weight"].shape[1] - 1)
    return ones(a["x"].shape[0], *a["x"].shape[2:], a["B"].shape[3])


def rows_of_weight(name):
    return lambda a: ones(a[name].shape[0])


# Arguments that may have a dtype of their own: of FLOATS, of INTEGERS where they are counts. One that no op takes is a failure.
OWN_DTYPE = {
    "activation": "x", "attention": "sinks alibi_slopes", "dyt": "x alpha gamma beta", "linear": "x", "loss": "logits",
    "deformable": "value sampling_locations attention_weights spatial_shapes level_start_index",
    "mamba": "x weight bias initial_state dy state u delta A B C D z delta_bias dlast_state dt dt_bias dfinal_state states",
    "moe": "index weights", "norm": "x weight bias", "probability": "x",
}  # fmt: skip
# What no call gives, made to fit the op's other arguments.
OPTIONAL = {
    "dlse": lambda a: ones(*a["lse"].shape, dtype=torch.float32), "sinks": heads_of, "alibi_slopes": heads_of,
    "seqused_k": lambda a: a["cu_seqlens_k"].diff().int(),
    "block_table": lambda a: torch.arange(len(a["q"]), dtype=torch.int32)[:, None],
    "cache_batch_idx": lambda a: torch.arange(len(a["q"]), dtype=torch.int32),
    "q_norm": lambda a: ones(a["k_cache"].shape[3]), "k_norm": lambda a: ones(a["k_cache"].shape[3]),
    **{f"{w}_bias": rows_of_weight(w) for w in ("q", "k", "v", "o", "gate", "up", "down")},
    "class_weight": lambda a: ones(a["logits"].shape[1] if "logits" in a else len(a["weight"]), dtype=torch.float32),
    "bias": rows_of_weight("weight"), "labels": lambda a: torch.zeros(len(a["x"]), dtype=torch.int64),
    "masters": lambda a: [t.float() for t in a["parameters"]],
    "seq_idx": lambda a: torch.zeros(len(a["u"] if "u" in a else a["x"]), length_of(a), dtype=torch.int32),
    "cache_seqlens": lambda a: torch.zeros(len(a["x"]), dtype=torch.int32),
    "state_indices": lambda a: torch.arange(len(a["x"]), dtype=torch.int32),
    **dict.fromkeys(("initial_state", "dlast_state", "dfinal_state"), state_of),
    **dict.fromkeys(("scales", "zeros", "global_scale", "table", "order"), lambda a: ones(1, dtype=torch.float32)),
}  # fmt: skip
# Arguments of contracts that the package refuses, in any dtype.
REFUSED = {("packed_linear", name) for name in ("scales", "zeros", "global_scale", "table", "order")}


def blocks(experts, out, columns):
    """In Q8_0, each with a scale of 2^-8."""
    bytes_of = torch.ones(experts, out, columns // 32, 34, dtype=torch.uint8)
    bytes_of.view(torch.int16)[..., 0] = 0x1C00
    return bytes_of.flatten(2)


def packed_experts(a):
    experts, out, columns = a["w_up"].shape
    up, down = blocks(experts, out, columns), blocks(experts, columns, out // 2)
    return a | {"w_up": up, "w_down": down, "up_format": "q8_0", "down_format": "q8_0", "b_up": ones(experts, out), "b_down": ones(experts, columns)}


# Ops that say how many rows another op takes: none of tensors that it would refuse.
ANSWERS = {"decoder_layer_rows", "decoder_layer_packed_rows"}


# op -> another, of whose arguments its own are made: those that no call has.
DERIVED = {
    "moe_experts_packed": ("moe_experts", packed_experts),
    "decoder_layer_rows": ("decoder_layer", dict),
    "decoder_layer_packed_rows": ("decoder_layer_packed", dict),
}
# What an op's results hold anywhere: rows past those of the last expert.
DEFINED = {"moe_experts_train": lambda y, h, order, slots, ends: (y, h[: ends[-1]], order[: ends[-1]], slots, ends)}


def ops_of(package):
    """OpOverload of each op that takes tensors."""
    ops = loaded(package)._ops.ops
    names = [n.split("::")[1] for n in torch._C._dispatch_get_all_op_names() if n.startswith(f"{ops.name}::")]
    return [getattr(ops, name).default for name in sorted(names) if name not in WITHOUT_TENSORS]


def name_of(op):
    return op._schema.name.split("::")[1]


def is_tensors(value):
    return isinstance(value, torch.Tensor) or (isinstance(value, list) and value and isinstance(value[0], torch.Tensor))


def changed(value, to):
    return [to(t) for t in value] if isinstance(value, list) else to(value)


def copied(args):
    return {name: changed(a, torch.Tensor.clone) if is_tensors(a) else a for name, a in args.items()}


class Calls(TorchDispatchMode):
    """For each argument of each op the arguments, by name, of the first call that gives tensors for it."""

    def __init__(self, ops):
        super().__init__()
        self.found = {op: {} for op in ops}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op in self.found:
            given = dict(zip((a.name for a in op._schema.arguments), args), **(kwargs or {}))
            for name in [name for name, a in given.items() if is_tensors(a) and name not in self.found[op]]:
                self.found[op][name] = copied(given)
        return op(*args, **(kwargs or {}))


@functools.cache
def examples(package):
    """OpOverload -> argument -> the arguments of a call that gives it."""
    with Calls(ops_of(package)) as calls, torch.no_grad():
        for call in cases(package).values():
            call()
    found = {name_of(op): its for op, its in calls.found.items()}
    for op, its in calls.found.items():
        names = [a.name for a in op._schema.arguments]
        if not its and name_of(op) in DERIVED:
            other, derive = DERIVED[name_of(op)]
            made = derive(next(iter(found[other].values())))
            its |= dict.fromkeys([n for n in names if is_tensors(made[n])], {n: made[n] for n in names})
        first = next(iter(its.values()), {})
        its |= {name: first | {name: OPTIONAL[name](first)} for name in names if name in OPTIONAL and name not in its and first}
    return calls.found


@pytest.fixture(scope="module", params=PACKAGES)
def package(request):
    return request.param


@pytest.fixture
def found(package):
    return examples(package)


def tensors_of(result):
    results = result if isinstance(result, (tuple, list)) else [result]
    return [torch.as_tensor(t) for t in results if t is not None]


def run(op, args):
    """What it gives, and what it leaves in its arguments."""
    args = copied(args)
    with torch.no_grad():
        results = tensors_of(DEFINED.get(name_of(op), lambda *all: all)(*tensors_of(op(**args))))
    return results + [t for a in op._schema.arguments if a.is_write and is_tensors(args.get(a.name)) for t in tensors_of(args[a.name])]


def far(got, expected):
    got, expected = got.double().nan_to_num(), expected.double().nan_to_num()
    return got.shape != expected.shape or (got - expected).norm() > 2**-6 * expected.norm()


def wrong_text(op, names, words, error):
    """Of an error that does not name the op, one of these arguments and all words, in three parts."""
    text = str(error)
    named = re.match(rf"{name_of(op)}: expected .*; got .*; .+", text, re.DOTALL)
    named = named and all(re.search(rf"\b({word})\b", text) for word in ["|".join(names), *words])
    return None if named else text.splitlines()[0]


def other_dtype(op, name, args, dtype, taken):
    """What is wrong with the op's answer to this dtype, or None. taken: names of arguments that come in other ones."""
    own = args[name][0].dtype if isinstance(args[name], list) else args[name].dtype
    given = changed(args[name], lambda t: t.to(dtype))
    try:
        got = run(op, args | {name: given})
    except Exception as error:  # of torch's own, too: that is a fault
        return wrong_text(op, [name], [str(dtype).removeprefix("torch.")], error)
    if name_of(op) in ANSWERS:
        return None if got == [0] else "accepted"
    if (name_of(op), name) in REFUSED or not ({own, dtype} <= FLOATS or {own, dtype} <= INTEGERS):
        return "accepted"
    taken.add(name)
    expected = run(op, args | {name: changed(given, lambda t: t.to(own))})
    return "accepted, with other results" if any(map(far, got, expected)) else None


def one_dimension_more(op, name, args):
    if isinstance(args[name], list):
        return None
    try:
        run(op, args | {name: args[name].unsqueeze(0)})
    except Exception as error:  # another argument's, too, whose shape then does not fit
        return wrong_text(op, [a.name for a in op._schema.arguments if "Tensor" in str(a.type)], [], error)


def test_every_argument_has_a_call(found):
    without = [f"{name_of(op)}: {a.name}" for op, calls in found.items() for a in op._schema.arguments
               if "Tensor" in str(a.type) and a.name not in calls]  # fmt: skip
    assert not without


def test_other_dtypes_compute_the_same_or_are_named(package, found):
    wrong, taken = [], set()
    for op, calls in found.items():
        for name, args in calls.items():
            own = tensors_of(args[name])[0].dtype
            tried = DTYPES if (name_of(op), name) in REFUSED else [d for d in DTYPES if d != own]
            found_here = {dtype: other_dtype(op, name, args, dtype, taken) for dtype in tried}
            wrong += [f"{name_of(op)}, {name} in {dtype}, not {own}: {what}" for dtype, what in found_here.items() if what]
    assert not wrong, "\n".join([str(len(wrong)), *wrong])
    assert taken == set(OWN_DTYPE.get(package, "").split())


def test_one_dimension_more_is_taken_or_named(found):
    wrong = [f"{name_of(op)}, {name}: {what}" for op, calls in found.items() for name, args in calls.items()
             if (what := one_dimension_more(op, name, args))]  # fmt: skip
    assert not wrong, "\n".join([str(len(wrong)), *wrong])
