"""Schedule primitives for hand use on any PrimFunc: stripes, and rolling buffers between them."""
