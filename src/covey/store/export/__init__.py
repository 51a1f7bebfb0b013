"""How does a version leave the store? As ONNX, as an archive of torch, in the layouts of other hubs."""
