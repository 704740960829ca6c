"""Programs on NVIDIA GPUs: the device behind one interface, the executor, compilation without a device."""
