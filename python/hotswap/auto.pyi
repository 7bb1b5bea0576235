from hotswap.liger.auto import *
