"""Layers of nets that find objects in images, as in SSD's fork of Caffe."""
