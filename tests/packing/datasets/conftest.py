"""These tests need the extra `datasets`."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("datasets") else ["test_*.py"]
