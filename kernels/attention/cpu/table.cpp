// The kernels of one ISA. Compiled once per ISA.
#include "kernels/attention/cpu/kernels.h"

namespace attention::HOTSWAP_ISA {

const CpuTable kTable = {forward, stream, merge, backward, write_gradients};

}  // namespace attention::HOTSWAP_ISA
