from hotswap.matchers.attention import *
