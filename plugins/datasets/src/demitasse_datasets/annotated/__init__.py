"""Images with boxes of the objects in them, cropped and coloured at random, as in SSD's fork of
Caffe."""
