from . import _package
from ._package import ops


class SiLU(_package.Layer):
    def forward(self, input):
        return ops.silu(input)


class GeLU(_package.Layer):
    """By the normal integral. A GELUActivation made with use_gelu_python computes the same."""

    def forward(self, input):
        return ops.gelu(input)


class GeluTanh(_package.Layer):
    def forward(self, input):
        return ops.gelu_tanh(input)


class NewGELU(_package.Layer):
    def forward(self, input):
        return ops.gelu_new(input)


class FastGELU(_package.Layer):
    def forward(self, input):
        return ops.gelu_fast(input)


class QuickGELU(_package.Layer):
    def forward(self, input):
        return ops.gelu_quick(input)


class ReLUSquared(_package.Layer):
    def forward(self, input):
        return ops.relu_squared(input)


class SiluAndMul(_package.Layer):
    """silu(gate) * up, x = [gate | up] along the last dimension."""

    def forward(self, x):
        return ops.silu_and_mul(x)


class GeluAndMul(_package.Layer):
    def forward(self, x):
        return ops.gelu_and_mul(x)


class GeluTanhAndMul(_package.Layer):
    def forward(self, x):
        return ops.gelu_tanh_and_mul(x)


Silu = SiLU
Gelu = GeLU
