from hotswap.matchers.loss import *
