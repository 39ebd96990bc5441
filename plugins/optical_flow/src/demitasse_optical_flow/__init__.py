"""Layers of nets that estimate optical flow and disparity: those of FlowNet, DispNet and PWC-Net."""
