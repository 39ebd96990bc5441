"""The pycaffe interface on top of Demitasse: ``import demitasse_caffe.pycaffe as caffe``.

The plugin's README lists the differences from Caffe.
"""

from demitasse_caffe.pycaffe import _caffe as _caffe
from demitasse_caffe.pycaffe import coord_map as coord_map
from demitasse_caffe.pycaffe import draw as draw
from demitasse_caffe.pycaffe import io as io
from demitasse_caffe.pycaffe import proto as proto
from demitasse_caffe.pycaffe import pycaffe as pycaffe
from demitasse_caffe.pycaffe.blob import Blob as Blob
from demitasse_caffe.pycaffe.classifier import Classifier as Classifier
from demitasse_caffe.pycaffe.detector import Detector as Detector
from demitasse_caffe.pycaffe.layer import Layer as Layer
from demitasse_caffe.pycaffe.nccl import NCCL as NCCL
from demitasse_caffe.pycaffe.net import Net as Net
from demitasse_caffe.pycaffe.net_spec import NetSpec as NetSpec
from demitasse_caffe.pycaffe.net_spec import layers as layers
from demitasse_caffe.pycaffe.net_spec import params as params
from demitasse_caffe.pycaffe.net_spec import to_proto as to_proto
from demitasse_caffe.pycaffe.runtime import TEST as TEST
from demitasse_caffe.pycaffe.runtime import TRAIN as TRAIN
from demitasse_caffe.pycaffe.runtime import allow_python_layers as allow_python_layers
from demitasse_caffe.pycaffe.runtime import has_nccl as has_nccl
from demitasse_caffe.pycaffe.runtime import init_log as init_log
from demitasse_caffe.pycaffe.runtime import layer_type_list as layer_type_list
from demitasse_caffe.pycaffe.runtime import log as log
from demitasse_caffe.pycaffe.runtime import set_device as set_device
from demitasse_caffe.pycaffe.runtime import set_mode_cpu as set_mode_cpu
from demitasse_caffe.pycaffe.runtime import set_mode_gpu as set_mode_gpu
from demitasse_caffe.pycaffe.runtime import set_multiprocess as set_multiprocess
from demitasse_caffe.pycaffe.runtime import set_phase_test as set_phase_test
from demitasse_caffe.pycaffe.runtime import set_phase_train as set_phase_train
from demitasse_caffe.pycaffe.runtime import set_random_seed as set_random_seed
from demitasse_caffe.pycaffe.runtime import set_solver_count as set_solver_count
from demitasse_caffe.pycaffe.runtime import set_solver_rank as set_solver_rank
from demitasse_caffe.pycaffe.runtime import solver_count as solver_count
from demitasse_caffe.pycaffe.runtime import solver_rank as solver_rank
from demitasse_caffe.pycaffe.runtime import use as use
from demitasse_caffe.pycaffe.solver import AdaDeltaSolver as AdaDeltaSolver
from demitasse_caffe.pycaffe.solver import AdaGradSolver as AdaGradSolver
from demitasse_caffe.pycaffe.solver import AdamSolver as AdamSolver
from demitasse_caffe.pycaffe.solver import NesterovSolver as NesterovSolver
from demitasse_caffe.pycaffe.solver import RMSPropSolver as RMSPropSolver
from demitasse_caffe.pycaffe.solver import SGDSolver as SGDSolver
from demitasse_caffe.pycaffe.solver import get_solver as get_solver
from demitasse_caffe.pycaffe.timer import Timer as Timer

__version__ = "1.0.0"
"""The version of Caffe whose interface this is."""
