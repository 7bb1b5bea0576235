from hotswap.liger.preference import *
