from hotswap.liger.chunked_loss import *
