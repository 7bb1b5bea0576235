from hotswap.matchers.experts import *
