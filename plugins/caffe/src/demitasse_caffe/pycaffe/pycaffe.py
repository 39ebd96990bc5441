"""What old scripts import from Caffe's Python part: ``from caffe.pycaffe import Net``."""

from demitasse_caffe.pycaffe import io as io
from demitasse_caffe.pycaffe.nccl import NCCL as NCCL
from demitasse_caffe.pycaffe.net import Net as Net
from demitasse_caffe.pycaffe.solver import AdaDeltaSolver as AdaDeltaSolver
from demitasse_caffe.pycaffe.solver import AdaGradSolver as AdaGradSolver
from demitasse_caffe.pycaffe.solver import AdamSolver as AdamSolver
from demitasse_caffe.pycaffe.solver import NesterovSolver as NesterovSolver
from demitasse_caffe.pycaffe.solver import RMSPropSolver as RMSPropSolver
from demitasse_caffe.pycaffe.solver import SGDSolver as SGDSolver
from demitasse_caffe.pycaffe.timer import Timer as Timer
