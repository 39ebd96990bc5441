"""CUDA kernels on a CPU: g++ compiles the sources behind a header that defines CUDA's built-ins, and a
driver runs launches block by block. It is slow, but runs the kernels' own text."""

from cuda_on_cpu.compilation import compiled as compiled
from cuda_on_cpu.compilation import compiler as compiler
from cuda_on_cpu.compilation import kernels_of as kernels_of
from cuda_on_cpu.driver import EmulatedDriver as EmulatedDriver

NO_COMPILER = "no C++ compiler (g++ or clang++) to emulate CUDA kernels with"
