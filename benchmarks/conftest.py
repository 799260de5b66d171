"""Excludes modules from pytest if the extra that they need is not installed."""

import importlib.util

_PEERS = ("torch", "transformers")
collect_ignore = [] if all(map(importlib.util.find_spec, _PEERS)) else ["hugging_face.py"]
