"""Predictions of models in ONNX files, which are checked before and run in a process of their own."""
