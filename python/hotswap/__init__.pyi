"""Types of the public names. python/tests/test_types.py compares them with the names, parameters and defaults at run time;
`./x check` runs mypy on them and on python/tests/typed_program.py, a program that uses them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Optional, TypeVar, Union

from kernels import Mode
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from transformers import AutoModelForCausalLM, KernelConfig

from hotswap import generation as generation
from hotswap import liger as liger
from hotswap import mamba as mamba
from hotswap._liger import *
from hotswap.core import packages as packages
from hotswap.liger import auto as auto
from hotswap.liger import chunked_loss as chunked_loss
from hotswap.liger import distillation as distillation
from hotswap.liger import grpo as grpo
from hotswap.liger import head as head
from hotswap.liger import modules as modules
from hotswap.liger import preference as preference
from hotswap.matchers import attention as attention
from hotswap.matchers import experts as experts
from hotswap.matchers import loss as loss
from hotswap.swap.config import HotswapKernelConfig
from hotswap.swap.report import Report

__version__: str

_Model = TypeVar("_Model", bound=nn.Module)
_Mapping = Union[dict[str, Any], KernelConfig, HotswapKernelConfig]

def kernelize(
    model: _Model,
    mode: Optional[Union[Mode, str]] = None,
    strict: bool = False,
    kernel_config: Optional[_Mapping] = None,
    allow_all_kernels: bool = False,
    **options: Union[bool, str],
) -> _Model: ...
def unkernelize(model: _Model) -> _Model: ...
def report(model: nn.Module) -> Report: ...
def kernel_config(
    kernel_mapping: Optional[dict[str, Any]] = None,
    use_local_kernel: bool = False,
    inherit_mapping: Optional[bool] = None,
    mode: Optional[Union[Mode, str]] = None,
    strict: bool = False,
    allow_all_kernels: bool = False,
    **options: Union[bool, str],
) -> HotswapKernelConfig: ...
def load(name: str) -> ModuleType: ...
def packages_folder() -> Path: ...
def register_experts(name: str = "hotswap") -> None: ...
def enable_for_trainer(shadow: bool = False) -> None: ...
def generate(
    model: nn.Module,
    input_ids: Optional[Tensor] = None,
    streamer: Any = None,
    tokenizer: Any = None,
    **kwargs: Any,
) -> Any: ...
def captured_generate(
    model: nn.Module,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    hotswap_streamer: Any = None,
    hotswap_cache: bool = False,
    **model_kwargs: Any,
) -> Any: ...
def _apply_liger_kernel(model_type: str, **options: bool) -> None: ...
def _apply_liger_kernel_to_instance(model: nn.Module, **options: bool) -> None: ...

class AutoLigerKernelForCausalLM(AutoModelForCausalLM):
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Union[str, Path], *model_args: Any, **given: Any) -> Any: ...
    @classmethod
    def from_config(cls, config: Any, **given: Any) -> Any: ...

@dataclass
class CrossEntropyOutput:
    loss: Tensor
    z_loss: Optional[Tensor] = None
    token_accuracy: Optional[Tensor] = None
    predicted_tokens: Optional[Tensor] = None

class AdamW(Optimizer):
    def __init__(
        self,
        params: ParamsT,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        *,
        states: str = "parameter",
        seed: int = 0,
    ) -> None: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any: ...
