"""How runs reach a network: NVIDIA FLARE, Flower, and networks on one machine."""
