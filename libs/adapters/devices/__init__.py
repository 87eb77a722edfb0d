"""Devices of a node: one seam, several kinds. `nvml` real GPUs, `cpu` this machine, `simulated` a fleet from a file."""

from libs.adapters.devices.layer import DeviceLayer, NoDevices

__all__ = ["DeviceLayer", "NoDevices"]
