"""Describes the machine of a measurement."""

from __future__ import annotations

import os
import pathlib
import platform

import jax


def machine() -> str:
  """The processor and its cores, such as "AMD EPYC, 2 cores"."""
  info = pathlib.Path("/proc/cpuinfo")
  lines = info.read_text().splitlines() if info.exists() else []
  names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
  processor = next(iter(names), platform.processor() or platform.machine())
  return f"{processor}, {os.cpu_count()} cores"


def machine_and_device() -> str:
  """The processor, its cores, and JAX's device."""
  return f"{machine()}; {jax.devices()[0].device_kind}, jax {jax.__version__}"
