"""Every op of every package: its first derivative by backward is its gradient, or an error where it has none; every other
derivative is an error; and a call leaves nothing on the heap. The calls are those of each package's tests/gpu_cases.py,
made on the CPU."""

import ctypes
import gc
import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
from kernels import get_local_kernel
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

KERNELS = Path(__file__).resolve().parents[2]
PACKAGES = sorted(toml.parent.name for toml in KERNELS.glob("*/build.toml"))
WITHOUT_TENSORS = {"call_count", "isa", "op_names", "decoder_layer_rows", "decoder_layer_packed_rows"}


def loaded(package):
    return get_local_kernel(Path(os.environ["HOTSWAP_PACKAGES"]) / package, backend="cpu")


def all_ops(package):
    """name -> OpOverload of all that its namespace holds."""
    ops = loaded(package)._ops.ops
    namespace = f"{ops.name}::"
    names = [n.removeprefix(namespace) for n in torch._C._dispatch_get_all_op_names() if n.startswith(namespace)]
    return {name: getattr(ops, name).default for name in names if name not in WITHOUT_TENSORS}


def cases(package):
    spec = importlib.util.spec_from_file_location(f"{package}_cases", KERNELS / package / "tests/gpu_cases.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generator = torch.Generator().manual_seed(0)
    random = lambda *shape: torch.randn(*shape, generator=generator).bfloat16()
    return module.cases(loaded(package)._ops.ops, random, sorted(all_ops(package)))


class FirstCalls(TorchDispatchMode):
    """The arguments of the first call of each of these ops."""

    def __init__(self, ops):
        super().__init__()
        self.ops, self.found = set(ops), {}

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op in self.ops and op not in self.found:
            self.found[op] = [t.clone() if isinstance(t, torch.Tensor) else t for t in args], dict(kwargs or {})
        return op(*args, **(kwargs or {}))


def calls(package):
    """OpOverload -> (arguments, keyword arguments) of a call."""
    made, tried = cases(package), set()
    with FirstCalls(all_ops(package).values()) as first, torch.no_grad():
        for name, call in sorted(made.items()):  # "rms_norm" before "rms_norm, odd"
            op = name.split(",")[0]
            if op not in tried:
                call()
            tried.add(op)
    return first.found


def differentiable(args):
    return [i for i, t in enumerate(args) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def tensors(result):
    results = result if isinstance(result, (tuple, list)) else [result]
    return [t for t in results if isinstance(t, torch.Tensor) and t.is_floating_point()]


def refused(package, op, what, run):
    with pytest.raises(NotImplementedError, match="expected .* got a request for a derivative") as caught:
        run()
    assert op._schema.name.split("::")[-1].removesuffix("_fwd") in str(caught.value), (package, what)


@pytest.fixture(scope="module", params=PACKAGES)
def package(request):
    return request.param


@pytest.fixture(scope="module")
def found(package):
    return calls(package)


def ways(package, op):
    """As torch calls it, and as the package's functions do."""
    return op, getattr(loaded(package)._package.ops, op._schema.name.split("::")[-1])


def test_all_ops_are_tried(package, found):
    missing = {name for name, op in all_ops(package).items() if op not in found}
    assert missing <= {"packed_linear", "moe_experts_packed"}, missing  # which take blocks of bytes


def test_all_ops_answer_autograd(package):
    """Without a kernel for this key an op's results are constants to whoever takes a derivative."""
    for name, op in all_ops(package).items():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "Autograd"), name


def test_forward_mode_is_refused(package, found):
    for op, function, args, kwargs in ((o, way, *call) for o, call in found.items() for way in ways(package, o)):
        at = differentiable(args)[0]

        def dual():
            given = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
            with forward_ad.dual_level():
                given[at] = forward_ad.make_dual(given[at], torch.ones_like(given[at]))
                function(*given, **kwargs)

        def transformed():
            rest = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
            with_first = lambda x: function(*rest[:at], x, *rest[at + 1 :], **kwargs)
            torch.func.jvp(with_first, (rest[at],), (torch.ones_like(rest[at]),))

        refused(package, op, "dual numbers", dual)
        refused(package, op, "torch.func.jvp", transformed)


def test_steps_go_the_short_way(package, found):
    """Backward, too: an op that a package takes for its gradients before it registers them skips the dispatcher's Python as well.
    Where an op has no gradient, the dispatcher's kernel is what refuses."""
    called = set()

    def note(frame, event, _):
        if event == "call":
            called.add((Path(frame.f_code.co_filename).name, frame.f_code.co_name))

    for op, (args, kwargs) in found.items():
        inputs = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
        learning = [inputs[i] for i in differentiable(args) if inputs[i].numel() and not op._schema.arguments[i].is_write]
        for t in learning:
            t.requires_grad_()
        function = ways(package, op)[1]
        called.clear()
        sys.setprofile(note)
        try:
            results = [t for t in tensors(function(*inputs, **kwargs)) if t.requires_grad]
            if results:
                torch.autograd.grad(sum(t.float().sum() for t in results), learning, allow_unused=True)
        except NotImplementedError:
            continue
        finally:
            sys.setprofile(None)
        if results and not kwargs:
            assert ("_package.py", "call") in called and ("_derivatives.py", "kernel") not in called, op.name()


def test_derivatives_beyond_the_first_are_refused(package, found):
    for op, function, args, kwargs in ((o, way, *call) for o, call in found.items() for way in ways(package, o)):
        given = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
        learning = []
        for i in differentiable(args):
            if given[i].numel() and not op._schema.arguments[i].is_write and op._schema.arguments[i].name not in ("cos", "sin"):
                given[i].requires_grad_()
                learning.append(given[i])

        def twice():
            outputs = [t for t in tensors(function(*given, **kwargs)) if t.requires_grad]
            loss = sum(t.float().square().sum() for t in outputs) + sum(t.float().square().sum() for t in learning)
            first = torch.autograd.grad(loss, learning, create_graph=True)  # here, where there is none
            norm = sum(t.float().square().sum() for t in first)
            torch.autograd.grad(norm, learning[0])

        if tensors(function(*given, **kwargs)) and learning:
            refused(package, op, "a gradient of a gradient", twice)


class Zeros(TorchDispatchMode):
    """Sizes of the tensors of zeros that were made."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op is torch.ops.aten.zeros.default:
            self.made.append(args[0])
        return op(*args, **(kwargs or {}))


def test_backward_is_given_no_zeros(package, found):
    """For results without a gradient, such as statistics kept for backward: on a GPU that is a kernel for each of them, and
    memory of their size."""
    tried = 0
    for op, function, args, kwargs in ((o, way, *call) for o, call in found.items() for way in ways(package, o)):
        given = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
        names = [a.name for a in op._schema.arguments]
        learns = [i for i in differentiable(args) if names[i] not in ("cos", "sin") and not op._schema.arguments[i].is_write]
        learning = [given[i].requires_grad_() for i in learns]
        made = function(*given, **kwargs)
        results = [t for t in (made if isinstance(made, (tuple, list)) else [made]) if isinstance(t, torch.Tensor)]
        outputs = [t for t in results if t.requires_grad]
        if not outputs or len(outputs) == len(results):
            continue
        with Zeros() as zeros:
            try:
                torch.autograd.grad(outputs[0], learning, torch.ones_like(outputs[0]), allow_unused=True)
            except NotImplementedError:  # an op without a gradient
                continue
        assert zeros.made == [], op
        tried += 1
    if package in ("moe", "norm", "probability"):
        assert tried > 0


def test_writing_into_what_learns_is_refused(package, found):
    """Of ops that give nothing back, there would be no place for an error."""
    for op, (args, kwargs) in found.items():
        written = [i for i in differentiable(args) if op._schema.arguments[i].is_write]
        if op._schema.returns or not written:
            continue
        given = [t.clone() if isinstance(t, torch.Tensor) else t for t in args]
        given[written[0]].requires_grad_()
        for function in ways(package, op):
            refused(package, op, "in place", lambda: function(*given, **kwargs))


class MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]  # fmt: skip


LIBC = ctypes.CDLL(None)
needs_mallinfo = pytest.mark.skipif(not hasattr(LIBC, "mallinfo2"), reason="no mallinfo2: glibc 2.33 has it")


def bytes_on_the_heap():
    LIBC.mallinfo2.restype = MallInfo
    info = LIBC.mallinfo2()
    return info.uordblks + info.hblkhd


def leaks(op, args, kwargs, calls_made=16, rounds=5):
    """The smallest that could stay of a call is a block of 32 bytes, and it would stay of every call of every round. Seven
    blocks of a size may come from those that glibc keeps at hand, which count as used already. What grows in some rounds
    only is a cache or a page of Python's own."""
    written = [argument.is_write for argument in op._schema.arguments]

    def heap_after_calls():
        for _ in range(calls_made):
            op(*[t.clone() if write and isinstance(t, torch.Tensor) else t for t, write in zip(args, written)], **kwargs)
        gc.collect()
        return bytes_on_the_heap()

    gc.freeze()  # collections then look at what these calls leave, not at all of Python's libraries
    try:
        before = heap_after_calls()
        for _ in range(rounds):
            after = heap_after_calls()
            if after - before < 32 * (calls_made - 7 - 3):
                return False
            before = after
        return True
    finally:
        gc.unfreeze()


@needs_mallinfo
def test_calls_leave_nothing_on_the_heap(package, found):
    with torch.no_grad():
        leaking = [op._schema.name for op, call in found.items() if leaks(op, *call)]
    assert not leaking


@needs_mallinfo
def test_the_smallest_leak_is_found():
    class Leaking:
        def __init__(self, op):
            self.op, self._schema = op, op._schema

        def __call__(self, *args, **kwargs):
            LIBC.malloc(24)  # and 8 of glibc's own
            return self.op(*args, **kwargs)

    with torch.no_grad():
        assert all(leaks(Leaking(op), *call) for op, call in calls("rotary").items())
