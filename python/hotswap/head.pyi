from hotswap.liger.head import *
