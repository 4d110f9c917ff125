"""`validate`: a compiled network's results on a data set, and the distance from the reference's outputs."""
