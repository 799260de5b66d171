"""Packing a stream: sequences are packed as they arrive."""

from packing.online.packer import OnlinePacker
from packing.online.stream import StreamPacker

__all__ = ["OnlinePacker", "StreamPacker"]
