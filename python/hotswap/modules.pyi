from hotswap.liger.modules import *
