"""Layers of nets that find optical flow and disparity: those of FlowNet, DispNet and PWC-Net."""
