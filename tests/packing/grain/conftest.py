"""These tests need the extra `grain`."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("grain") else ["test_*.py"]
