from hotswap.liger.grpo import *
