"""Layers of nets that find objects in images, as SSD's fork of Caffe has them."""
