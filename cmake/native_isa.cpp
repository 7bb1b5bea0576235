// Prints the best ISA of the CPU that runs it.
#include <cstdio>

#include "kernels/common/cpu/isa.h"

int main() { std::fputs(kernels::isa_name(kernels::chosen_isa()), stdout); }
