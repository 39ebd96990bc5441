"""CUDA kernels on a CPU: g++ compiles the sources behind a header of what CUDA's compiler knows by
itself, and a driver runs what is launched, block by block. Slow, but the kernels' own text."""

from cuda_on_cpu.compilation import compiled as compiled
from cuda_on_cpu.compilation import compiler as compiler
from cuda_on_cpu.compilation import kernels_of as kernels_of
from cuda_on_cpu.driver import EmulatedDriver as EmulatedDriver

NO_COMPILER = "no C++ compiler (g++ or clang++) to emulate CUDA kernels with"
