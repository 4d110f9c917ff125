"""`validate`: what a compiled network gets right on a data set, and how far its outputs are from the reference's."""
