"""Images with boxes of what they show, cut and coloured at random, as SSD's fork of Caffe has them."""
