"""What a quantized network is, whatever file it came from: operators, and the tensors that they read and write."""
