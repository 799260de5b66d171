"""What programs import. No device is touched, so that forking is safe."""

import gc
import os

os.environ.setdefault("TQDM_MININTERVAL", "15")  # as programs set it; read at import

import tensorboardX  # noqa: F401

import launch.record.plots
import launch.record.throughput  # noqa: F401
import training.checkpoint
import training.evaluation
import training.step  # noqa: F401

gc.freeze()
gc.set_threshold(100_000, 50, 50)  # tracing leaves many objects
