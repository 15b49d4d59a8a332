"""A trained model: what it predicts, its files, and as ONNX."""
