from hotswap.liger.distillation import *
