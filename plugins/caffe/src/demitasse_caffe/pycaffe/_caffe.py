"""What old scripts import from Caffe's compiled module: ``caffe._caffe.BlobVec``."""

from demitasse_caffe.pycaffe.blob import Blob as Blob
from demitasse_caffe.pycaffe.blob import BlobVec as BlobVec
from demitasse_caffe.pycaffe.blob import BlobVec as RawBlobVec  # noqa: F401 (its name until 2016)
from demitasse_caffe.pycaffe.layer import Layer as Layer
from demitasse_caffe.pycaffe.nccl import NCCL as NCCL
from demitasse_caffe.pycaffe.net import Net as Net
from demitasse_caffe.pycaffe.runtime import has_nccl as has_nccl
from demitasse_caffe.pycaffe.runtime import init_log as init_log
from demitasse_caffe.pycaffe.runtime import layer_type_list as layer_type_list
from demitasse_caffe.pycaffe.runtime import log as log
from demitasse_caffe.pycaffe.runtime import set_device as set_device
from demitasse_caffe.pycaffe.runtime import set_mode_cpu as set_mode_cpu
from demitasse_caffe.pycaffe.runtime import set_mode_gpu as set_mode_gpu
from demitasse_caffe.pycaffe.runtime import set_multiprocess as set_multiprocess
from demitasse_caffe.pycaffe.runtime import set_random_seed as set_random_seed
from demitasse_caffe.pycaffe.runtime import set_solver_count as set_solver_count
from demitasse_caffe.pycaffe.runtime import set_solver_rank as set_solver_rank
from demitasse_caffe.pycaffe.runtime import solver_count as solver_count
from demitasse_caffe.pycaffe.runtime import solver_rank as solver_rank
from demitasse_caffe.pycaffe.solver import AdaDeltaSolver as AdaDeltaSolver
from demitasse_caffe.pycaffe.solver import AdaGradSolver as AdaGradSolver
from demitasse_caffe.pycaffe.solver import AdamSolver as AdamSolver
from demitasse_caffe.pycaffe.solver import NesterovSolver as NesterovSolver
from demitasse_caffe.pycaffe.solver import RMSPropSolver as RMSPropSolver
from demitasse_caffe.pycaffe.solver import SGDSolver as SGDSolver
from demitasse_caffe.pycaffe.solver import Solver as Solver
from demitasse_caffe.pycaffe.solver import get_solver as get_solver
from demitasse_caffe.pycaffe.timer import Timer as Timer
