from hotswap.core.packages import *
