"""Nets that learn to find squares in images, as their files have them."""

LEARNT = """
layer { name: "c1" type: "Convolution" bottom: "data" top: "c1" convolution_param { num_output: 16
  kernel_size: 5 stride: 2 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "r1" type: "ReLU" bottom: "c1" top: "c1" }
layer { name: "c2" type: "Convolution" bottom: "c1" top: "c2" convolution_param { num_output: 32
  kernel_size: 5 stride: 2 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "r2" type: "ReLU" bottom: "c2" top: "c2" }
layer { name: "loc" type: "Convolution" bottom: "c2" top: "loc" convolution_param { num_output: 4
  kernel_size: 5 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "loc_p" type: "Permute" bottom: "loc" top: "loc_p"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "loc_f" type: "Flatten" bottom: "loc_p" top: "loc_f" }
layer { name: "conf" type: "Convolution" bottom: "c2" top: "conf" convolution_param { num_output: 3
  kernel_size: 5 pad: 2 weight_filler { type: "xavier" } } }
layer { name: "conf_p" type: "Permute" bottom: "conf" top: "conf_p"
  permute_param { order: 0 order: 2 order: 3 order: 1 } }
layer { name: "conf_f" type: "Flatten" bottom: "conf_p" top: "conf_f" }
layer { name: "prior" type: "PriorBox" bottom: "c2" bottom: "data" top: "prior" prior_box_param {
  min_size: 10 variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 } }
"""


NET = """
layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" include {{ phase: TRAIN }}
  transform_param {{ scale: 0.0078125 mean_value: 128 mirror: true
    resize_param {{ height: 32 width: 32 interp_mode: LINEAR interp_mode: AREA }}
    emit_constraint {{ emit_type: CENTER }} distort_param {{ brightness_prob: 0.5 brightness_delta: 10 }}
    expand_param {{ prob: 0.3 max_expand_ratio: 1.3 }} }}
  data_param {{ source: "train_lmdb" batch_size: 16 backend: LMDB }}
  annotated_data_param {{ batch_sampler {{ max_sample: 1 max_trials: 1 }}
    batch_sampler {{ sampler {{ min_scale: 0.7 min_aspect_ratio: 0.8 max_aspect_ratio: 1.25 }}
      sample_constraint {{ min_object_coverage: 0.9 }} max_sample: 1 max_trials: 20 }} }} }}
layer {{ name: "data" type: "AnnotatedData" top: "data" top: "label" include {{ phase: TEST }}
  transform_param {{ scale: 0.0078125 mean_value: 128 resize_param {{ height: 32 width: 32 }} }}
  data_param {{ source: "test_lmdb" batch_size: 10 backend: LMDB }}
  annotated_data_param {{ batch_sampler {{ }} max_objects: 3 }} }}
{layers}
layer {{ name: "loss" type: "MultiBoxLoss" bottom: "loc_f" bottom: "conf_f" bottom: "prior"
  bottom: "label" top: "loss" include {{ phase: TRAIN }}
  multibox_loss_param {{ num_classes: 3 code_type: CENTER_SIZE }} }}
layer {{ name: "conf_r" type: "Reshape" bottom: "conf_f" top: "conf_r"
  reshape_param {{ shape {{ dim: 0 dim: -1 dim: 3 }} }} include {{ phase: TEST }} }}
layer {{ name: "conf_s" type: "Softmax" bottom: "conf_r" top: "conf_s" softmax_param {{ axis: 2 }}
  include {{ phase: TEST }} }}
layer {{ name: "likely" type: "Flatten" bottom: "conf_s" top: "likely" include {{ phase: TEST }} }}
layer {{ name: "found" type: "DetectionOutput" bottom: "loc_f" bottom: "likely" bottom: "prior"
  top: "found" include {{ phase: TEST }}
  detection_output_param {{ num_classes: 3 code_type: CENTER_SIZE keep_top_k: 20 }} }}
layer {{ name: "precision" type: "DetectionEvaluate" bottom: "found" bottom: "label" top: "precision"
  include {{ phase: TEST }} detection_evaluate_param {{ num_classes: 3 evaluate_difficult_gt: false }} }}
"""
