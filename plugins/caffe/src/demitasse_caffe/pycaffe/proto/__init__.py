"""What old scripts import as Caffe's messages: ``caffe.proto.caffe_pb2``."""

from demitasse_caffe.pycaffe.proto import caffe_pb2 as caffe_pb2
