"""Models of MXNet: a symbol in JSON and its parameters, read as the ONNX graph that computes the same."""
