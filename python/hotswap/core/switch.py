"""USE_HUB_KERNELS, which switches every kernel off."""

import os

OFF = "USE_HUB_KERNELS is off"
_YES, _NO = ("1", "ON", "YES", "TRUE"), ("0", "OFF", "NO", "FALSE")


def enabled() -> bool:
    """False for 0, OFF, NO or FALSE; True for 1, ON, YES or TRUE, and where it is empty or not set. ValueError for another word, as in
    the C++ host."""
    given = os.environ.get("USE_HUB_KERNELS") or "YES"
    if given.upper() not in (*_YES, *_NO):
        raise ValueError(f"expected USE_HUB_KERNELS to be {'/'.join(_YES)} or {'/'.join(_NO)}; got {given!r}; correct it or unset it")
    return given.upper() in _YES


enabled._dynamo_marked_constant = True  # torch.compile calls it once, as by torch.compiler.assume_constant_result, which imports dynamo
