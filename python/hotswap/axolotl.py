"""hotswap as a plugin of axolotl, by one line of a run's YAML:

    plugins: [hotswap.axolotl.HotswapPlugin]

Each model that axolotl loads is bound by hotswap.kernelize when all that axolotl does to it is done, adapters included and before FSDP,
DeepSpeed or torch.compile. The log has the report. The key `hotswap` may hold what kernelize takes by name:

    hotswap: {strict: true, fused_linear_cross_entropy: true, kernel_config: {SiLU: ""}}
"""

from typing import Any, Optional

from axolotl.integrations.base import BasePlugin
from axolotl.utils.logging import get_logger
from pydantic import BaseModel
from torch import nn

from hotswap.swap.bind import check_options, kernelize
from hotswap.swap.report import report

LOG = get_logger("axolotl.hotswap")  # axolotl shows the messages of loggers under its own name
# Forwards of axolotl's own that compute a layer without calling the parts that would be bound. With adapters it puts them in by itself
# where these keys are missing.
THEIRS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
ARGUMENTS = ("mode", "strict", "kernel_config", "allow_all_kernels")


class HotswapArgs(BaseModel):
    """The keys of a run's YAML that are this plugin's: axolotl drops every key that no schema declares."""

    hotswap: Optional[dict[str, Any]] = None


class HotswapPlugin(BasePlugin):
    def register(self, cfg: Any) -> None:
        """Sees the YAML as it was written, before axolotl fills in what is missing."""
        both = [name for name in THEIRS if cfg.get(name)]
        if both:
            raise ValueError(
                f"hotswap.axolotl: expected one source of kernels for adapters; got {', '.join(f'{name}: true' for name in both)}; leave "
                "these keys out, or the plugin"
            )
        given = cfg.get("hotswap") or {}
        if not isinstance(given, dict):
            raise TypeError(f"hotswap.axolotl: expected what hotswap.kernelize takes by name; got hotswap: {given}; write hotswap: {{strict: true}}")
        check_options({name: value for name, value in given.items() if name not in ARGUMENTS})
        for name in THEIRS:
            cfg[name] = False

    def get_input_args(self) -> str:
        return f"{__name__}.{HotswapArgs.__name__}"

    def post_model_load(self, cfg: Any, model: nn.Module) -> None:
        given = cfg.hotswap or {}
        kernelize(model, **(given.to_dict() if hasattr(given, "to_dict") else given))
        LOG.info("what each layer runs\n%s", report(model))
